"""Checkpoints that are not in order: each ends in one clear line that names the file or field, at once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.tiny import make_tiny_checkpoint

from headrace.errors import CheckpointError
from headrace.plan.checkpoint import identify, open_checkpoint

INDEX = "model.safetensors.index.json"
SHARD = "model-00002-of-00003.safetensors"
MAX_S = 2.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("whole"), "llama")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("sharded"), "qwen3_5_text", shards=3, mtp=True)


def refusal(path: Path) -> str:
    """The one line that refuses `path`, which must come within MAX_S."""
    start_s = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        identify(open_checkpoint(path))
    assert time.perf_counter() - start_s < MAX_S
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(path) in message
    return message


def edit_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def edit_tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def truncate(file: Path, by_bytes: int) -> None:
    file.write_bytes(file.read_bytes()[:-by_bytes])


def whole_cases() -> dict[str, tuple[Callable[[Path], object], tuple[str, ...]]]:
    """Name -> (what is done to a good one-file llama, words that the line must have)."""
    config, weights, tokenizer = "config.json", "model.safetensors", "tokenizer.json"
    norm, q = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"
    return {
        "no config": (lambda p: (p / config).unlink(), (config, "not a model directory")),
        "config is not JSON": (lambda p: (p / config).write_text("{'model_type': 'llama'}"), (config, "not JSON")),
        "config is binary": (lambda p: (p / config).write_bytes(b"\xff\xfe\x00"), (config, "not JSON")),
        "config is a list": (lambda p: (p / config).write_text("[]"), (config, "object")),
        "no model type": (lambda p: edit_json(p / config, lambda c: c.pop("model_type")), (config, "model_type")),
        "model type is a number": (lambda p: edit_json(p / config, lambda c: c.update(model_type=3)), (config, "model_type")),
        "unknown model type": (
            lambda p: edit_json(p / config, lambda c: c.update(model_type="bert")),
            ("model_type", "'bert'", "llama", "qwen3", "qwen3_5"),
        ),
        "quantised": (
            lambda p: edit_json(p / config, lambda c: c.update(quantization_config={"quant_method": "gptq"})),
            ("quantization_config", "gptq"),
        ),
        "quantised by ModelOpt": (
            lambda p: (p / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}'),
            ("quantization_config", "modelopt"),
        ),
        "field missing": (lambda p: edit_json(p / config, lambda c: c.pop("hidden_size")), ("hidden_size",)),
        "no weights": (lambda p: (p / weights).unlink(), (weights, "no weights")),
        "PyTorch weights": (
            lambda p: (p / weights).rename(p / "pytorch_model.bin"), (weights, "pytorch_model.bin", "safetensors are needed")
        ),
        "original weights": (
            lambda p: (p / weights).rename(p / "consolidated.00.pth"), ("consolidated.00.pth", "safetensors are needed")
        ),
        "a second file": (lambda p: shutil.copy(p / weights, p / "extra.safetensors"), ("extra.safetensors", INDEX)),
        "shards without an index": (
            lambda p: (p / weights).rename(p / SHARD), (INDEX, SHARD)
        ),
        "several files without an index": (
            lambda p: [shutil.copy(p / weights, p / "a.safetensors"), (p / weights).rename(p / "b.safetensors")],
            (INDEX, "2 files", "a.safetensors"),
        ),
        "no tokenizer": (lambda p: (p / tokenizer).unlink(), (tokenizer, "needs it")),
        "generation config": (
            lambda p: (p / "generation_config.json").write_text('{"eos_token_id": "</s>"}'),
            ("generation_config.json", "eos_token_id", "</s>"),
        ),
        "empty file": (lambda p: (p / weights).write_bytes(b""), (weights, "truncated")),
        "truncated data": (lambda p: truncate(p / weights, 1), (weights, "truncated")),
        "truncated header": (lambda p: (p / weights).write_bytes((p / weights).read_bytes()[:100]), (weights, "truncated")),
        "LFS pointer": (
            lambda p: (p / weights).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"),
            (weights, "git lfs pull"),
        ),
        "not safetensors": (lambda p: (p / weights).write_bytes(b"PK\x03\x04" + bytes(1000) + b"x" * 99), (weights,)),
        "missing tensor": (lambda p: edit_tensors(p / weights, lambda t: t.pop(norm)), (norm, "missing")),
        "unknown tensor": (lambda p: edit_tensors(p / weights, lambda t: t.update(odd=torch.zeros(2))), ("odd",)),
        "wrong shape": (
            lambda p: edit_tensors(p / weights, lambda t: t.update({q: torch.zeros(64, 16)})),
            (weights, q, "[64, 16]", "[64, 32]"),
        ),
        "integer weights": (
            lambda p: edit_tensors(p / weights, lambda t: t.update({q: torch.zeros(64, 32, dtype=torch.int8)})),
            (weights, q, "I8"),
        ),
        "link to nothing": (
            lambda p: [(p / weights).unlink(), (p / weights).symlink_to("../blobs/gone")], (weights, "../blobs/gone")
        ),
    }  # fmt: skip


def sharded_cases() -> dict[str, tuple[Callable[[Path], object], tuple[str, ...]]]:
    """Name -> (what is done to a good hybrid in three shards, words that the line must have)."""
    index, shard, norm = INDEX, SHARD, "model.norm.weight"

    def in_index(change: Callable[[dict[str, str]], object]) -> Callable[[Path], object]:
        return lambda p: edit_json(p / index, lambda value: change(value["weight_map"]))

    def mtp_to_lost_file(weight_map: dict[str, str]) -> None:
        weight_map.update({name: "mtp.safetensors" for name in weight_map if name.startswith("mtp.")})

    def mtp_deleted(p: Path) -> None:
        in_index(mtp_to_lost_file)(p)
        for file in p.glob("*.safetensors"):
            edit_tensors(file, lambda t: [t.pop(name) for name in list(t) if name.startswith("mtp.")])

    return {
        "shard deleted": (lambda p: (p / shard).unlink(), (shard, index)),
        "MTP shard deleted": (
            mtp_deleted, ("mtp.safetensors", "15 tensors", "mtp.fc.weight", "mtp.layers.0.self_attn.q_norm.weight")
        ),
        "shard truncated": (lambda p: truncate(p / shard, 7), (shard, "truncated")),
        "shard longer": (lambda p: (p / shard).open("ab").write(bytes(8)), (shard, "8 bytes longer")),
        "extra file": (lambda p: shutil.copy(p / shard, p / "old.safetensors"), ("old.safetensors", index)),
        "index is not JSON": (lambda p: truncate(p / index, 3), (index, "not JSON")),
        "index without a map": (lambda p: (p / index).write_text('{"metadata": {}}'), (index, "weight_map")),
        "index maps to a number": (in_index(lambda m: m.update(odd=3)), (index, "odd", "3")),
        "index leaves the directory": (in_index(lambda m: m.update(odd="../x.safetensors")), (index, "odd", "../x")),
        "tensor only in the index": (in_index(lambda m: m.update(odd=shard)), (shard, "odd", index)),
        "tensor not in the index": (in_index(lambda m: m.pop(norm)), (norm, index)),
        "tensor in another shard": (in_index(lambda m: m.update({norm: "model-00001-of-00003.safetensors"})), (norm,)),
        "tensor twice": (
            lambda p: edit_tensors(p / shard, lambda t: t.update({norm: torch.zeros(32)})), (shard, norm, index)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", whole_cases())
def test_one_file(whole: Path, tmp_path: Path, case: str) -> None:
    damage, words = whole_cases()[case]
    path = Path(shutil.copytree(whole, tmp_path / "model"))
    damage(path)
    message = refusal(path)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("case", sharded_cases())
def test_shards(sharded: Path, tmp_path: Path, case: str) -> None:
    damage, words = sharded_cases()[case]
    path = Path(shutil.copytree(sharded, tmp_path / "model"))
    damage(path)
    message = refusal(path)
    assert all(word in message for word in words), message


def test_no_such_path(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere")


def test_empty_directory(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)


def test_directory_of_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "must be named" in refusal(tmp_path)


def test_cache_directory_above_its_snapshots(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "0123abcd").mkdir(parents=True)
    assert "snapshots" in refusal(tmp_path)


def test_one_file_of_a_directory(whole: Path) -> None:
    assert "name its directory" in refusal(whole / "model.safetensors")
