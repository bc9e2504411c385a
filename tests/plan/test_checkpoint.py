"""Checkpoints that are in order: what opening them finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.support.tiny import MODEL_TYPES, make_tiny_checkpoint

from headrace.plan.checkpoint import Checkpoint, identify, open_checkpoint


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("sharded"), "qwen3_5", shards=3, mtp=True, dtype=torch.bfloat16)


def _stored(path: Path) -> dict[str, tuple[str, bytes]]:
    """Every tensor's file and bytes, read by the safetensors library."""
    found = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                found[name] = (file.name, opened.get_tensor(name).contiguous().view(torch.uint8).numpy().tobytes())
    return found


def _located(checkpoint: Checkpoint) -> dict[str, tuple[str, bytes]]:
    """Every tensor's file and bytes, read where the headers say it lies."""
    found = {}
    for name, tensor in checkpoint.tensors.items():
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            found[name] = (tensor.file.name, file.read(tensor.nbytes))
    return found


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_headers_locate_every_tensor(tmp_path: Path, model_type: str, shards: int) -> None:
    path = make_tiny_checkpoint(tmp_path, model_type, shards=shards)
    checkpoint = open_checkpoint(path)
    assert checkpoint.kind == "hf" and checkpoint.config["model_type"] == model_type
    assert _located(checkpoint) == _stored(path)
    assert checkpoint.generation_eos_ids == (2, 0)
    assert checkpoint.dtype == "float32"


def test_identify_accounts_for_every_tensor(sharded: Path) -> None:
    model = identify(open_checkpoint(sharded))
    weights = {weight.source for weight in model.weight_map.weights}
    left_out = {name for _, names in model.weight_map.left_out for name in names}
    kept = set(model.weight_map.kept)
    assert weights | left_out | kept == model.checkpoint.tensors.keys()
    assert len(kept) == 15 and all(name.startswith("mtp.") for name in kept)
    assert left_out and all(name.startswith("model.visual.") for name in left_out)
    assert model.spec.mtp_layers == 1
    assert model.checkpoint.dtype == "bfloat16"


def test_links_into_a_cache(sharded: Path, tmp_path: Path) -> None:
    """As a download cache keeps a snapshot: every file a link to a blob without a suffix."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(sharded.iterdir())):
        shutil.copy(file, blobs / f"{number:064x}")
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"{number:064x}", snapshot))
    assert _located(open_checkpoint(snapshot)) == _located(open_checkpoint(sharded))


@pytest.mark.parametrize(("written", "ids"), [({"eos_token_id": 7}, (7,)), ({"eos_token_id": None}, ()), ({}, ()), (None, ())])
def test_generation_eos_ids(tmp_path: Path, written: dict[str, object] | None, ids: tuple[int, ...]) -> None:
    path = make_tiny_checkpoint(tmp_path, "llama")
    (path / "generation_config.json").unlink()
    if written is not None:
        (path / "generation_config.json").write_text(json.dumps(written))
    assert open_checkpoint(path).generation_eos_ids == ids


def test_files_of_other_programs_do_not_disturb(sharded: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(sharded, tmp_path / "copy"))
    (path / "._model-00001-of-00003.safetensors").write_bytes(b"what a Mac leaves")
    (path / "original").mkdir()
    (path / "original" / "consolidated.safetensors").write_bytes(b"of another format")
    (path / "pytorch_model.bin").write_bytes(b"of another format")
    assert open_checkpoint(path).tensors.keys() == open_checkpoint(sharded).tensors.keys()


def test_needs_no_torch(sharded: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from headrace.plan.checkpoint import identify, open_checkpoint;"
        "identify(open_checkpoint(Path(sys.argv[1])));"
        "assert not {'torch', 'gguf', 'numpy', 'pydantic', 'msgspec'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(sharded)], check=True, env={**os.environ, "PYTHONPATH": "src"})
