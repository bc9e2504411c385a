"""A checkpoint's own drafter: found in its directory, and nowhere else."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.tiny import make_tiny_checkpoint
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace import LLM, SamplingParams
from headrace.config import EngineConfig
from headrace.engine.model_source import find_model
from headrace.engine.ssd_cache import _drafter_digest
from headrace.errors import CheckpointError, ConfigError
from headrace.plan.checkpoint import Model
from headrace.plan.drafters import NO_DRAFTER, drafter_memory
from headrace.plan.dtypes import Dtypes
from headrace.plan.own_drafter import drafter_folder
from headrace.plan.published import published_model
from headrace.plan.speculation import drafter_for

DTYPES = Dtypes("bfloat16", "bfloat16", "float16")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    path = make_tiny_checkpoint(tmp_path / "model", mtp=True)
    found = find_model(path, EngineConfig())
    config = dflash_config(found.spec.vocab_size)
    write_dflash(path / "drafter", config, dflash_tensors(config))
    return found


def test_it_is_found(model: Model) -> None:
    own = model.checkpoint.path / "drafter"
    assert drafter_folder(model, EngineConfig()) == own
    expected = drafter_memory(model, "dflash", None, own, DTYPES)
    assert drafter_for(model, EngineConfig(speculate="dflash"), DTYPES) == expected


def test_another_one_that_is_given_goes_first(model: Model, tmp_path: Path) -> None:
    assert drafter_folder(model, EngineConfig(drafter=str(tmp_path))) == tmp_path


def test_a_folder_that_is_not_one_is_named(model: Model) -> None:
    own = model.checkpoint.path / "drafter"
    (own / "config.json").unlink()
    with pytest.raises(CheckpointError, match=f"{own}.*config.json"):
        drafter_for(model, EngineConfig(speculate="dflash"), DTYPES)


def test_other_methods_leave_it_alone(model: Model) -> None:
    assert drafter_for(model, EngineConfig(speculate="off"), DTYPES) == NO_DRAFTER
    for method in ("mtp", "lookup"):
        assert drafter_for(model, EngineConfig(speculate=method), DTYPES).method == method
    with pytest.raises(ConfigError, match="--drafter there is for --speculate dflash, not mtp"):
        drafter_for(model, EngineConfig(speculate="mtp", drafter="there"), DTYPES)


def test_models_without_a_directory_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the working directory that is called like a declared model is not that model's."""
    name = "qwen3.8-27b"
    (tmp_path / name / "drafter").mkdir(parents=True)
    (tmp_path / name / "drafter" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert drafter_folder(published_model(name), EngineConfig()) is None
    assert drafter_folder(find_model(None, EngineConfig()), EngineConfig()) is None
    plain = make_tiny_checkpoint(tmp_path / "plain")
    assert drafter_folder(find_model(plain, EngineConfig()), EngineConfig()) is None


def test_it_drafts(model: Model) -> None:
    """And changes no token."""
    path, params = model.checkpoint.path, SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    with LLM(path, device="cpu", dtype="float64", context=128) as plain:
        (expected,) = plain.generate([[3, 4, 5]], params)
    with LLM(path, device="cpu", dtype="float64", context=128, speculate="dflash") as llm:
        (found,) = llm.generate([[3, 4, 5]], params)
    assert found.tokens == expected.tokens and found.drafted_tokens > 0 == expected.drafted_tokens


def test_what_it_keeps_on_disk_is_its_own(model: Model, tmp_path: Path) -> None:
    """Entries of the SSD tier depend on the drafter's weights, wherever they are."""
    kept = {method: drafter_for(model, EngineConfig(speculate=method), DTYPES).cache for method in ("mtp", "dflash")}
    drafting = {method: replace(model, spec=replace(model.spec, drafter=cache)) for method, cache in kept.items()}
    config = dflash_config(model.spec.vocab_size)
    same, other = (write_dflash(tmp_path / str(seed), config, dflash_tensors(config, seed)) for seed in (0, 1))
    own = _drafter_digest(drafting["dflash"], EngineConfig())
    assert own == _drafter_digest(drafting["dflash"], EngineConfig(drafter=str(same)))
    assert own != _drafter_digest(drafting["dflash"], EngineConfig(drafter=str(other)))
    (model.checkpoint.path / "drafter").rename(tmp_path / "away")
    assert own != _drafter_digest(drafting["dflash"], EngineConfig())
    head = _drafter_digest(drafting["mtp"], EngineConfig())
    assert head == hashlib.sha256(f"{kept['mtp']} ".encode()).digest(), "the head is in the model's files"
    assert _drafter_digest(model, EngineConfig()) is None
