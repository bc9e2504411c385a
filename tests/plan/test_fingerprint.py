"""A kept prefix belongs to one model, its types and its layout: whatever differs, the fingerprint does."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.errors import CheckpointError
from headrace.plan.contents import Checkpoint, TensorHeader
from headrace.plan.dtypes import Dtypes
from headrace.plan.fingerprint import SAMPLED_BYTES, cache_fingerprint, weights_digest

LAYOUT = CacheLayout((CacheGroup(0, None, (0, 3), 64, 4),), 16, (10,), 4)
DTYPES = Dtypes("bfloat16", "int8", "float16")
LARGE = 5 * SAMPLED_BYTES


def checkpoint(root: Path) -> Checkpoint:
    root.mkdir(exist_ok=True)
    file = root / "model.safetensors"
    file.write_bytes(bytes(range(256)) * ((LARGE + 500) // 256 + 1))
    small = TensorHeader(file, "U8", (40,), 100 + LARGE, 40)
    tensors = {"large": TensorHeader(file, "U8", (LARGE,), 100, LARGE), "small": small}
    return Checkpoint(root, "hf", {"model_type": "toy", "rope_theta": 1e4}, tensors)


def flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def test_a_copy_is_the_same_model(tmp_path: Path) -> None:
    first = weights_digest(checkpoint(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert weights_digest(checkpoint(tmp_path / "two")) == first


@pytest.mark.parametrize("at", (100, 100 + LARGE // 3, 100 + LARGE - 1, 100 + LARGE, 100 + LARGE + 39))
def test_other_weights_are_another_model(tmp_path: Path, at: int) -> None:
    one = checkpoint(tmp_path)
    before = weights_digest(one)
    flip(tmp_path / "model.safetensors", at)
    assert weights_digest(one) != before


def test_only_64_kib_of_a_tensor_are_read(tmp_path: Path) -> None:
    one = checkpoint(tmp_path)
    changes = 0
    for at in range(100, 100 + LARGE, SAMPLED_BYTES // 16):
        before = weights_digest(one)
        flip(tmp_path / "model.safetensors", at)
        changes += weights_digest(one) != before
    assert 12 <= changes <= 20, "16 of the steps lie in the samples, but for their edges"


def test_other_headers_are_another_model(tmp_path: Path) -> None:
    one = checkpoint(tmp_path)
    small = one.tensors["small"]
    others = [
        replace(one, config={"model_type": "toy", "rope_theta": 1e5}),
        replace(one, permuted=frozenset({"small"})),
        replace(one, tensors={"large": one.tensors["large"]}),
        replace(one, tensors={"large": one.tensors["large"], "tiny": small}),
        replace(one, tensors={**one.tensors, "small": replace(small, dtype="I8")}),
        replace(one, tensors={**one.tensors, "small": replace(small, shape=(4, 10))}),
    ]
    assert len({weights_digest(each) for each in (one, *others)}) == 1 + len(others)


def test_other_types_layouts_and_parts_are_others() -> None:
    weights = b"w" * 32
    [group] = LAYOUT.groups
    prints = {
        cache_fingerprint(weights, DTYPES, LAYOUT),
        cache_fingerprint(b"v" * 32, DTYPES, LAYOUT),
        cache_fingerprint(weights, replace(DTYPES, kv="bfloat16"), LAYOUT),
        cache_fingerprint(weights, replace(DTYPES, compute="float16"), LAYOUT),
        cache_fingerprint(weights, replace(DTYPES, state="float32"), LAYOUT),
        cache_fingerprint(weights, DTYPES, replace(LAYOUT, page_tokens=8)),
        cache_fingerprint(weights, DTYPES, replace(LAYOUT, groups=(replace(group, window=4),))),
        cache_fingerprint(weights, DTYPES, LAYOUT, "rank 1 of 2"),
    }
    assert len(prints) == 8
    more = replace(LAYOUT, pages=(999,), slots=1)
    assert cache_fingerprint(weights, replace(DTYPES, notes=("why",)), more) in prints, "sizes of pools do not matter"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    one = checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        weights_digest(one)
