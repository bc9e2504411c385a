"""Reading ranges of files a few pieces ahead of their use, through a fixed set of buffers.

Files are read, not mapped: pages of a mapping count as the process's memory until the kernel drops them, and a checkpoint
is many times larger than what loading it should need.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headrace.errors import CheckpointError

_BUFFERS = 4


@dataclass(frozen=True, slots=True)
class FileRange:
    """`nbytes` bytes of `file` from `offset` on."""

    file: Path
    offset: int
    nbytes: int


def read_ahead(ranges: Sequence[FileRange], *, cuda: bool) -> Iterator[Tensor]:
    """The bytes of each range, in order, as uint8 [nbytes]: valid until the next is asked for.

    Uses _BUFFERS times the largest range. With `cuda` the buffers are pinned and a copy to the current device that was begun
    before the next range is asked for may finish later. Raises CheckpointError naming a file that cannot be read to the end.
    """
    size_bytes = max((r.nbytes for r in ranges), default=0)
    buffers = [torch.empty(size_bytes, dtype=torch.uint8, pin_memory=cuda) for _ in range(_BUFFERS)]
    copied = [_event() if cuda else None for _ in buffers]
    with ThreadPoolExecutor(_BUFFERS) as pool:

        def read(index: int) -> Future[None]:
            return pool.submit(_read, ranges[index], buffers[index % _BUFFERS], copied[index % _BUFFERS])

        pending = deque(read(index) for index in range(min(_BUFFERS, len(ranges))))
        for index, wanted in enumerate(ranges):
            pending.popleft().result()
            yield buffers[index % _BUFFERS][: wanted.nbytes]
            event = copied[index % _BUFFERS]
            if event is not None:
                event.record()
            if index + _BUFFERS < len(ranges):
                pending.append(read(index + _BUFFERS))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _read(wanted: FileRange, buffer: Tensor, copied: torch.cuda.Event | None) -> None:
    if copied is not None:
        copied.synchronize()
    view = buffer.numpy().data[: wanted.nbytes]
    try:
        with wanted.file.open("rb", buffering=0) as file:
            done_bytes = 0
            while done_bytes < wanted.nbytes:
                read_bytes = os.preadv(file.fileno(), [view[done_bytes:]], wanted.offset + done_bytes)
                if read_bytes == 0:
                    raise CheckpointError(f"{wanted.file} has become shorter while it was read")
                done_bytes += read_bytes
    except OSError as error:
        raise CheckpointError(f"{wanted.file} cannot be read: {error.strerror}") from None
