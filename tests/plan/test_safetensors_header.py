"""Headers that a hostile or broken writer could leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CheckpointError
from headrace.plan.safetensors_header import read_header


def write(path: Path, header: object, data_bytes: int) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data_bytes))
    return path


def entry(begin: int, end: int, dtype: str = "F32", shape: object = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def test_reads_what_is_in_order(tmp_path: Path) -> None:
    header = {"b": entry(8, 24, shape=[2, 2]), "a": entry(0, 8), "none": entry(8, 8, shape=[0, 3]), "__metadata__": {"x": "y"}}
    path = write(tmp_path / "f", header, 24)
    start = path.stat().st_size - 24
    found = read_header(path)
    assert {name: (t.shape, t.offset - start, t.nbytes) for name, t in found.items()} == {
        "a": ((2,), 0, 8), "b": ((2, 2), 8, 16), "none": ((0, 3), 8, 0),
    }  # fmt: skip


def test_half_byte_types(tmp_path: Path) -> None:
    assert read_header(write(tmp_path / "f", {"a": entry(0, 8, "F4", [4, 4])}, 8))["a"].shape == (4, 4)


@pytest.mark.parametrize(
    ("header", "data_bytes", "words"),
    [
        (b"{", 0, ["malformed header"]),
        (b"[1]", 0, ["malformed header"]),
        (b"[" * 100_000, 0, ["malformed header"]),
        (b'{"a": 1, "a": 2}', 0, ["'a'", "twice"]),
        ({"a": [1]}, 0, ["'a'", "data_offsets"]),
        ({"a": {"dtype": "F32", "shape": []}}, 0, ["'a'", "data_offsets"]),
        ({"a": entry(0, 8, "F33")}, 8, ["'a'", "F33"]),
        ({"a": entry(0, 8, "F32", [-2])}, 8, ["'a'", "shape"]),
        ({"a": entry(0, 8, "F32", [True, 2])}, 8, ["'a'", "shape"]),
        ({"a": entry(0, 8, "F32", "2")}, 8, ["'a'", "shape"]),
        ({"a": entry(0, 8, "F32", [3])}, 8, ["'a'", "8 bytes"]),
        ({"a": entry(8, 0, "F32", [0])}, 8, ["'a'", "data_offsets"]),
        ({"a": entry(-8, 0)}, 8, ["'a'", "data_offsets"]),
        ({"a": entry(0, 16)}, 8, ["truncated"]),
        ({"a": entry(0, 2**70)}, 8, ["truncated"]),
        ({"a": entry(0, 8)}, 12, ["4 bytes longer"]),
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, ["'a'", "'b'", "overlap"]),
        ({"a": entry(0, 8), "b": entry(0, 8)}, 8, ["'a'", "'b'", "overlap"]),
        ({"a": entry(0, 8), "b": entry(12, 16)}, 16, ["gap", "'b'"]),
    ],
)  # fmt: skip
def test_refuses(tmp_path: Path, header: object, data_bytes: int, words: list[str]) -> None:
    path = write(tmp_path / "shard", header, data_bytes)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    message = str(caught.value)
    assert all(word in message for word in [str(path), *words]), message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("length", [2**64 - 1, 200_000_000, 1000])
def test_header_longer_than_the_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "shard"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="header"):
        read_header(path)


@given(st.binary(max_size=200))
def test_never_fails_otherwise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(content)
    try:
        read_header(path)
    except CheckpointError as error:
        assert str(path) in str(error)
