"""The first bytes of an entry's file: what it is of, its buffers' sizes, and checksums of everything, these bytes included.

Little-endian: magic, format version, bytes of the header (whole blocks of 4096, then the data begin), kind, start, end, base,
digest, number of buffers, number of pieces; then 8 bytes for each buffer's size, 4 for each piece's CRC-32, 4 for that of
all before.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.cache.ssd.key import EntryKey
from headrace.cache.ssd.pieces import piece_count

MAGIC = b"headrace"
VERSION = 1
BLOCK_BYTES = 4096
MAX_HEADER_BYTES = 1 << 20
_FIXED = struct.Struct("<8sIIcQQ8s32sII")

DamageReason = Literal["foreign", "version", "header", "other_key", "shape", "truncated", "corrupt"]


class Damaged(Exception):
    """A file that is not, or no longer, the entry that was looked for."""

    def __init__(self, reason: DamageReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: DamageReason = reason


@dataclass(frozen=True, slots=True)
class Header:
    """sizes: bytes of each buffer. crcs: of each piece, see `pieces`."""

    key: EntryKey
    sizes: tuple[int, ...]
    crcs: tuple[int, ...]

    def packed(self) -> bytes:
        """As it stands in the file, zeros at the end."""
        total = header_bytes(len(self.sizes), len(self.crcs))
        fields = _fields(self.key)
        text = _FIXED.pack(MAGIC, VERSION, total, *fields, len(self.sizes), len(self.crcs))
        text += struct.pack(f"<{len(self.sizes)}Q{len(self.crcs)}I", *self.sizes, *self.crcs)
        return (text + zlib.crc32(text).to_bytes(4, "little")).ljust(total, b"\0")


def header_bytes(buffers: int, pieces: int) -> int:
    """Where the data of an entry begin. Raises ValueError for more buffers than an entry can have."""
    total = -(-(_FIXED.size + 8 * buffers + 4 * pieces + 4) // BLOCK_BYTES) * BLOCK_BYTES
    if total > MAX_HEADER_BYTES:
        raise ValueError(f"{buffers} buffers in {pieces} pieces are too many for one entry")
    return total


def entry_bytes(sizes: Sequence[int]) -> int:
    """Bytes of an entry's file with buffers of these sizes."""
    return header_bytes(len(sizes), piece_count(sizes)) + sum(sizes)


def stated_bytes(start: bytes) -> int:
    """How long the header says that it is. `start`: the first block of the file. Raises Damaged if that is no header."""
    if start[:8] != MAGIC[: len(start)]:
        raise Damaged("foreign", f"it begins with {start[:8]!r}")
    if len(start) < BLOCK_BYTES:
        raise Damaged("truncated", f"it has {len(start)} bytes, less than a header")
    _, version, total, *_ = _FIXED.unpack_from(start)
    if version != VERSION:
        raise Damaged("version", f"its format is {version}, this is {VERSION}")
    if total % BLOCK_BYTES or not BLOCK_BYTES <= total <= MAX_HEADER_BYTES:
        raise Damaged("header", f"its header says that it has {total} bytes")
    return int(total)


def checked_crcs(raw: bytes, key: EntryKey, sizes: Sequence[int], file_bytes: int) -> tuple[int, ...]:
    """The pieces' checksums, from a file's whole header `raw`. Raises Damaged if it is not `key`'s with buffers of `sizes`."""
    *_, buffers, pieces = _FIXED.unpack_from(raw)
    end = _FIXED.size + 8 * buffers + 4 * pieces
    if end + 4 > len(raw):
        raise Damaged("header", f"{buffers} buffers and {pieces} pieces do not fit into its header")
    if zlib.crc32(memoryview(raw)[:end]) != int.from_bytes(raw[end : end + 4], "little"):
        raise Damaged("header", "its header does not have its checksum")
    if tuple(_FIXED.unpack_from(raw)[3:8]) != _fields(key):
        raise Damaged("other_key", "it holds another entry than its name says")
    stored = struct.unpack_from(f"<{buffers}Q", raw, _FIXED.size)
    if stored != tuple(sizes) or pieces != piece_count(sizes):
        raise Damaged("shape", f"its buffers have {_brief(stored)} bytes, wanted are {_brief(sizes)}")
    if file_bytes != len(raw) + sum(sizes):
        raise Damaged("truncated", f"it has {file_bytes} bytes, not {len(raw) + sum(sizes)}")
    return struct.unpack_from(f"<{pieces}I", raw, _FIXED.size + 8 * buffers)


def _fields(key: EntryKey) -> tuple[bytes, int, int, bytes, bytes]:
    return key.kind.value.encode(), key.start, key.end, key.base, key.digest


def _brief(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:4]))
    return shown if len(sizes) <= 4 else f"{shown}, ... ({len(sizes)} buffers)"
