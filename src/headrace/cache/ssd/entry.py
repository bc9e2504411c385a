"""One entry's file, written and read."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from headrace.cache.ssd.disk import Disk
from headrace.cache.ssd.header import BLOCK_BYTES, Damaged, Header, checked_crcs, header_bytes, stated_bytes
from headrace.cache.ssd.key import EntryKey
from headrace.cache.ssd.pieces import Group, Workers, checksums, for_each, groups_of, move_all, piece_count


def write_entry(
    disk: Disk, part: tuple[int, str], path: str, key: EntryKey, views: Sequence[memoryview], *, sync: bool
) -> None:
    """Write an entry and let it appear at `path`, whole, in place of what was there. Raises OSError; then nothing appeared.

    part: the new file to write to, (descriptor, path), which is closed in any case. Its header is written last, after all data.
    """
    fd, part_path = part
    try:
        sizes = tuple(map(len, views))
        data_start = header_bytes(len(sizes), piece_count(sizes))
        crcs: list[int] = []
        for group in groups_of(views, data_start):
            crcs += checksums(group)
            move_all(disk.write, fd, group.pieces, group.offset)
        move_all(disk.write, fd, [memoryview(Header(key, sizes, tuple(crcs)).packed())], 0)
        if sync:
            disk.sync(fd)
        disk.rename(part_path, path)
    except BaseException:
        with suppress(OSError):
            disk.unlink(part_path)
        raise
    finally:
        with suppress(OSError):
            disk.close(fd)


def read_entry(
    disk: Disk, path: str, key: EntryKey, views: Sequence[memoryview], workers: Workers | None, used_ns: int
) -> None:
    """Fill `views` with what was written under `key`, and note when.

    Raises Damaged if the file is not that, or not whole, and OSError if it cannot be read; what `views` hold then is undefined.
    """
    fd = disk.open(path)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Damaged("foreign", "it is not a regular file")
        sizes = tuple(map(len, views))
        raw = _header(disk, fd, status.st_size)
        crcs = checked_crcs(raw, key, sizes, status.st_size)

        def intact(group: Group) -> bool:
            move_all(disk.read, fd, group.pieces, group.offset)
            return checksums(group) == list(crcs[group.first : group.first + len(group.pieces)])

        if not for_each(groups_of(views, len(raw)), intact, workers):
            raise Damaged("corrupt", "its data do not have their checksums")
        with suppress(OSError):
            disk.touch(fd, used_ns)
    finally:
        disk.close(fd)


def _header(disk: Disk, fd: int, file_bytes: int) -> bytes:
    start = bytearray(min(BLOCK_BYTES, file_bytes))
    move_all(disk.read, fd, [memoryview(start)], 0) if start else None
    total = stated_bytes(bytes(start))
    if total > file_bytes:
        raise Damaged("truncated", f"it has {file_bytes} bytes, its header alone {total}")
    if total == BLOCK_BYTES:
        return bytes(start)
    raw = bytearray(total)
    move_all(disk.read, fd, [memoryview(raw)], 0)
    return bytes(raw)
