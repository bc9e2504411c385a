"""Models with a name: where they lie, and what of the working directory is not taken for one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM, SamplingParams
from headrace.commands.info import report
from headrace.commands.plan import find_models
from headrace.config import EngineConfig
from headrace.engine.model_source import find_model
from headrace.errors import CheckpointError, ConfigError
from headrace.plan import named
from headrace.plan.demo import demo_model_path
from headrace.plan.named import NAMED, model_path


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab model of random weights in the package, and another directory to work in."""
    checkpoint = make_tiny_checkpoint(tmp_path / "shipped" / "lab")
    monkeypatch.setattr(named, "SHIPPED", checkpoint.parent)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return checkpoint


def test_a_name_is_a_path(shipped: Path) -> None:
    assert model_path("lab") == shipped
    assert model_path("demo") == model_path(None) == demo_model_path()


def test_every_way_to_a_model_knows_the_names(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_model("lab", EngineConfig()).checkpoint.path == shipped
    format, models = find_models("lab")
    assert format is None and models(None).checkpoint.path == shipped
    report("lab", as_json=True)
    assert str(shipped) in capsys.readouterr().out
    with LLM("lab", device="cpu", context=64) as llm:
        assert llm.info.model == str(shipped)
        (done,) = llm.generate([[3, 4, 5]], SamplingParams(max_tokens=3, ignore_eos=True))
        assert len(done.tokens) == 3


def test_a_path_that_looks_like_a_name_is_one(shipped: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = make_tiny_checkpoint(Path("lab"), "llama")
    for written in ("./lab", Path("lab"), str(other.absolute())):
        assert find_model(written, EngineConfig()).spec.model_type == "llama"
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert model_path("lab") == shipped
    assert "lab is the model that comes with headrace; for the directory of this name here, say ./lab" in caplog.text


def test_what_is_no_model_does_not_matter(shipped: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("lab").mkdir()
    assert model_path("lab") == shipped and not caplog.records
    Path("lab").rmdir()
    Path("lab").write_bytes(b"GGUF")
    assert model_path("lab") == shipped and "for the file of this name here, say ./lab" in caplog.text


def test_an_unknown_name_is_told_the_names(shipped: Path) -> None:
    with pytest.raises(CheckpointError, match="model lap does not exist; models with a name are demo and lab"):
        find_model("lap", EngineConfig())
    with pytest.raises(ConfigError, match=r"lap is no file or directory, and no model with a name: demo, lab, qwen3\.8-27b"):
        find_models("lap")


def test_an_installation_without_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "SHIPPED", tmp_path)
    with pytest.raises(CheckpointError, match="this headrace comes without the lab model: .*lab has no weights$"):
        NAMED["lab"]()
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "NOTICE").touch()
    with pytest.raises(CheckpointError, match="this headrace comes without the lab model"):
        NAMED["lab"]()
    (tmp_path / "lab" / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"not all there: .*config\.json is missing; install headrace anew"):
        NAMED["lab"]()
