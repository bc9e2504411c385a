"""The header of a GGUF file: metadata and tensor descriptions, checked against the file's length.

The `gguf` package's own reader makes an object of every string of the tokenizer, seconds for a file of 100 MB; this one
steps over arrays and reads one when it is asked for. Format: GGUF version 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError

_MAGIC = b"GGUF"
_FIXED_BYTES = 24  # magic, version, tensor count, metadata count
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_RANK = 4
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array that was stepped over: `count` values of GGUF value type `value_type` from `offset` on."""

    value_type: int
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the file describes it. type_id: its ggml type. shape: outermost dimension first. offset: in the file."""

    type_id: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything before the data of a GGUF file, which is `size_bytes` long."""

    path: Path
    size_bytes: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def array(self, key: str) -> list[Any]:
        """The values of metadata array `key`, read from the file now; strings are decoded. Empty if there is no such array."""
        found = self.metadata.get(key)
        if not isinstance(found, GgufArray):
            return []
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data, found.offset)
            return [cursor.value(found.value_type) for _ in range(found.count)]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of `path`. Raises CheckpointError naming the file if it is no GGUF file, or a damaged one."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            _check_start(path, file.read(_FIXED_BYTES))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data, size_bytes)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (struct.error, OverflowError):
        raise CheckpointError(f"{path} is truncated: its header runs past the end of the file") from None
    except ValueError as error:
        raise CheckpointError(f"{path} has a malformed header: {error}") from None


def _check_start(path: Path, start: bytes) -> None:
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path} is a Git LFS pointer, not the weights: fetch them with `git lfs pull`")
    if start[:4] != _MAGIC:
        raise CheckpointError(f"{path} is neither a model directory nor a GGUF file: it starts with {start[:4]!r}")
    if len(start) < _FIXED_BYTES:
        raise CheckpointError(f"{path} is truncated: it has {len(start)} bytes, less than a GGUF header")
    version = int.from_bytes(start[4:8], "little")
    if version not in (2, 3):
        raise CheckpointError(f"{path} is GGUF version {version} (or big-endian); versions 2 and 3, little-endian, can be read")


def _parse(path: Path, data: mmap.mmap, size_bytes: int) -> GgufHeader:
    cursor = _Cursor(data, 8)
    tensor_count, metadata_count = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"{key!r} is there twice")
        metadata[key] = cursor.value(cursor.number("<I"))
    described: dict[str, GgufTensor] = {}
    for _ in range(tensor_count):
        name = cursor.string()
        if name in described:
            raise ValueError(f"tensor {name!r} is there twice")
        described[name] = cursor.tensor()
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {name: GgufTensor(t.type_id, t.shape, data_start + t.offset) for name, t in described.items()}
    return GgufHeader(path, size_bytes, metadata, tensors)


class _Cursor:
    """Reads values one after the other; reading past the end raises struct.error."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self.data = data
        self.position = position

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.number("<Q")
        start, self.position = self.position, self.position + length
        self._check()
        text = self.data[start : self.position]
        return text.decode("utf-8", "surrogateescape")

    def value(self, value_type: int) -> Any:
        """A number, a string, or an array's place."""
        if value_type == _STRING:
            return self.string()
        if value_type == _ARRAY:
            return self._skip_array()
        if value_type not in _SCALARS:
            raise ValueError(f"unknown value type {value_type} before byte {self.position}")
        return self.number(_SCALARS[value_type])

    def tensor(self) -> GgufTensor:
        """What follows a tensor's name; its offset is still relative to the data."""
        rank = self.number("<I")
        if rank > _MAX_RANK:
            raise ValueError(f"a tensor of {rank} dimensions before byte {self.position}")
        dims = [self.number("<Q") for _ in range(rank)]
        type_id, offset = self.number("<I"), self.number("<Q")
        return GgufTensor(type_id, tuple(reversed(dims)), offset)

    def _skip_array(self) -> GgufArray:
        value_type, count = self.number("<I"), self.number("<Q")
        array = GgufArray(value_type, count, self.position)
        if array.value_type == _STRING:
            self._skip_strings(array.count)
        elif array.value_type in _SCALARS:
            self.position += array.count * struct.calcsize(_SCALARS[array.value_type])
        else:
            raise ValueError(f"unknown array type {array.value_type} before byte {self.position}")
        self._check()
        return array

    def _skip_strings(self, count: int) -> None:
        # Vocabularies have hundreds of thousands of them, hence the bare loop.
        data, position, unpack = self.data, self.position, _U64.unpack_from
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        self.position = position

    def _check(self) -> None:
        if self.position > len(self.data):
            raise struct.error
