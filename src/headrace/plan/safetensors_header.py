"""The header of a safetensors file, checked against the file's length.

Format: 8 bytes of little-endian header length, a JSON object name -> {dtype, shape, data_offsets}, then the data, which
the tensors fill without gap or overlap.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.plan.contents import TensorHeader

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_LFS_POINTER = b"version https://git-lfs"


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Every tensor of the file, by name. Reads the header only; raises CheckpointError naming the file (and the tensor)."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            start = file.read(len(_LFS_POINTER))
            header_bytes = _header_bytes(path, start, size_bytes)
            file.seek(_LENGTH_BYTES)
            entries = _parse(path, file.read(header_bytes))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    data_start = _LENGTH_BYTES + header_bytes
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in entries.items()}
    _check_extents(path, tensors, data_start, size_bytes)
    return tensors


def _header_bytes(path: Path, start: bytes, size_bytes: int) -> int:
    if start == _LFS_POINTER:
        raise CheckpointError(f"{path} is a Git LFS pointer, not the weights: fetch them with `git lfs pull`")
    if size_bytes < _LENGTH_BYTES:
        raise CheckpointError(f"{path} is truncated: it has {size_bytes} bytes, less than a safetensors header")
    header_bytes = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise CheckpointError(f"{path} is not a safetensors file: its header would be {header_bytes} bytes long")
    if header_bytes > size_bytes - _LENGTH_BYTES:
        raise CheckpointError(
            f"{path} is truncated: its header is {header_bytes} bytes long, the whole file {size_bytes}"
        )
    return header_bytes


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has a malformed header: {error}") from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path} has a malformed header: a JSON object was expected")
    entries.pop("__metadata__", None)
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorHeader:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{where} needs dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where} has the unknown dtype {dtype!r}")
    if not _is_sizes(shape):
        raise CheckpointError(f"{where} has a malformed shape {shape!r}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has malformed data_offsets {offsets!r}")
    begin, end = offsets
    if prod(shape) * DTYPE_BITS[dtype] != (end - begin) * 8:
        raise CheckpointError(f"{where} is {dtype} {shape}, which {end - begin} bytes do not hold")
    return TensorHeader(path, dtype, tuple(shape), data_start + begin, end - begin)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_extents(path: Path, tensors: Mapping[str, TensorHeader], data_start: int, size_bytes: int) -> None:
    """Tensors must fill the file's data exactly, as the format demands."""
    ends = max((t.offset + t.nbytes for t in tensors.values()), default=data_start)
    if ends > size_bytes:
        raise CheckpointError(f"{path} is truncated: it has {size_bytes} bytes, its header describes {ends}")
    position, previous = data_start, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset < position:
            raise CheckpointError(f"{path}: tensors {previous!r} and {name!r} overlap")
        if tensor.offset > position:
            raise CheckpointError(f"{path}: there is a gap before tensor {name!r}")
        position, previous = position + tensor.nbytes, name
    if position < size_bytes:
        raise CheckpointError(f"{path} is {size_bytes - position} bytes longer than its header describes")
