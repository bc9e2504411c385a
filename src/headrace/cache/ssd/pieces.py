"""Buffers cut into pieces with a checksum each, moved to and from a file in groups.

CRC-32 of pieces of at most 512 KiB: of what Python has built in it is the fastest, it frees the interpreter meanwhile, and
pieces can be read and checked on several threads. What was just read is in the second-level cache then: groups of 4 MiB are a
third slower.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = 1 << 19
_GROUP_BYTES = 1 << 19
_GROUP_PIECES = 256  # below IOV_MAX, which is 1024 on Linux


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces that lie one after the other from `offset` on, the entry's pieces `first`, `first` + 1, ..."""

    offset: int
    first: int
    pieces: tuple[memoryview, ...]


def flat_views(buffers: Sequence[ReadableBuffer]) -> list[memoryview]:
    """The buffers as bytes. Raises ValueError naming one that is not contiguous."""
    views = []
    for index, buffer in enumerate(buffers):
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise ValueError(f"buffer {index} is not contiguous")
        views.append(view.cast("B") if view.nbytes else memoryview(b""))
    return views


def piece_count(sizes: Sequence[int]) -> int:
    """Pieces that buffers of so many bytes are cut into."""
    return sum(-(-size // PIECE_BYTES) for size in sizes)


def groups_of(views: Sequence[memoryview], offset: int) -> list[Group]:
    """All pieces in order, the first at `offset` of the file."""
    pieces = [view[at : at + PIECE_BYTES] for view in views for at in range(0, len(view), PIECE_BYTES)]
    groups, taken, taken_bytes = [], 0, 0
    for index, piece in enumerate(pieces):
        full = taken_bytes + len(piece) > _GROUP_BYTES or index - taken == _GROUP_PIECES
        if full and index > taken:
            groups.append(Group(offset, taken, tuple(pieces[taken:index])))
            taken, offset, taken_bytes = index, offset + taken_bytes, 0
        taken_bytes += len(piece)
    if pieces:
        groups.append(Group(offset, taken, tuple(pieces[taken:])))
    return groups


def checksums(group: Group) -> list[int]:
    return [zlib.crc32(piece) for piece in group.pieces]


def move_all(
    move: Callable[[int, Sequence[memoryview], int], int], fd: int, views: Sequence[memoryview], offset: int
) -> None:
    """Call `move`, a vector read or write, until nothing is left. Raises OSError (EIO) if it stops moving."""
    rest = list(views)
    while rest:
        moved = move(fd, rest, offset)
        if moved == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        offset += moved
        while rest and moved >= len(rest[0]):
            moved -= len(rest.pop(0))
        if moved:
            rest[0] = rest[0][moved:]


@dataclass(frozen=True, slots=True)
class Workers:
    """`count` threads."""

    pool: Executor
    count: int


def for_each(groups: Sequence[Group], work: Callable[[Group], bool], workers: Workers | None) -> bool:
    """Whether `work` is true of all groups. Afterwards nothing runs any more, whatever it raises: the buffers are free."""
    if workers is None or len(groups) < 2:
        return all(map(work, groups))
    rest = iter(groups)  # of which each takes the next one, in the file's order
    futures = [workers.pool.submit(lambda: all(map(work, rest))) for _ in range(min(workers.count, len(groups)))]
    wait(futures)
    return all(future.result() for future in futures)
