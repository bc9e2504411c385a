"""Ranges of files, read into memory that is already there.

Files are read, not mapped: pages of a mapping count as the process's memory until the kernel drops them, and a checkpoint
is many times larger than what loading it should need.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class FileRange:
    """`nbytes` bytes of `file` from `offset` on."""

    file: Path
    offset: int
    nbytes: int

    def read_into(self, buffer: memoryview) -> None:
        """Fill the first `nbytes` of `buffer`. Raises CheckpointError naming the file if they cannot be read, or not all."""
        try:
            with self.file.open("rb", buffering=0) as file:
                done_bytes = 0
                while done_bytes < self.nbytes:
                    rest = buffer[done_bytes : self.nbytes]
                    read_bytes = os.preadv(file.fileno(), [rest], self.offset + done_bytes)
                    if read_bytes == 0:
                        raise CheckpointError(f"{self.file} has become shorter while it was read")
                    done_bytes += read_bytes
        except OSError as error:
            raise CheckpointError(f"{self.file} cannot be read: {error.strerror}") from None
