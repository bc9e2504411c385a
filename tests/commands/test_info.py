from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from tests.support.tiny import make_tiny_checkpoint

from headrace.commands.info import report
from headrace.commands.tensor_classes import tensor_classes
from headrace.plan.checkpoint import identify, open_checkpoint
from headrace.plan.demo import demo_model_path

Reader = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("hybrid"), "qwen3_5", shards=2, mtp=True)


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Reader:
    def reader(path: Path) -> dict[str, Any]:
        report(path, as_json=True)
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return reader


def test_every_tensor_is_counted_once(hybrid: Path) -> None:
    names, stored_bytes = set(), 0
    for file in hybrid.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                names.add(name)
                tensor = opened.get_tensor(name)
                stored_bytes += tensor.numel() * tensor.element_size()
    classes = tensor_classes(identify(open_checkpoint(hybrid)))
    assert sum(c.tensors for c in classes) == len(names)
    assert sum(c.bytes for c in classes) == stored_bytes


def test_a_hybrid_is_told_class_by_class(hybrid: Path, read: Reader) -> None:
    answer = read(hybrid)
    use = {c["name"]: c["use"] for c in answer["classes"]}
    assert {name for name, of in use.items() if of == "served"} == {
        "embedding", "norms", "gated delta", "attention", "mlp", "head",
    }  # fmt: skip
    assert use["multi-token prediction"] == "for drafts"
    assert use["vision tower"] == "left out"
    assert (answer["attention_layers"], answer["gated_delta_layers"], answer["files"]) == (1, 3, 2)
    # one attention layer: K and V of 2 heads of 16; three states of 4 x 8 x 8 and tails of 3 x (2 x 2 x 8 + 4 x 8), in 2 bytes
    assert answer["kv_bytes_per_token"] == 2 * 2 * 16 * 2
    assert answer["state_bytes_per_sequence"] == 3 * (4 * 8 * 8 + 3 * 64) * 2


def test_the_demo_model_is_told(read: Reader) -> None:
    answer = read(demo_model_path())
    assert answer["kind"] == "gguf"
    assert answer["tied"] is True
    assert sum(c["parameters"] for c in answer["classes"]) == 134_515_008
    assert {c["name"]: c["dtypes"] for c in answer["classes"]}["embedding"] == {"Q8_0": 49_152 * 576}


def test_people_are_told_the_same(hybrid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(hybrid, as_json=False)
    shown = capsys.readouterr().out
    assert "3 Gated DeltaNet + 1 attention layers, 32 wide" in shown
    for line in ("vision tower", "multi-token prediction", "gated delta"):
        assert line in shown
