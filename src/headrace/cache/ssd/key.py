"""What an entry is of, and the file name that says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

DIGEST_BYTES = 32
BASE_BYTES = 8
_MAX_TOKENS = 2**32 - 1
_NAME = re.compile(r"[pc]-[0-9a-f]{8}-[0-9a-f]{8}-[0-9a-f]{16}-[0-9a-f]{64}")
_BASE = slice(20, 36)  # of a name
_DIGEST = slice(37, 101)


class Kind(StrEnum):
    """pages: keys and values of tokens start to end. checkpoint: a state after `end` tokens, with its partial page's tokens."""

    PAGES = "p"
    CHECKPOINT = "c"


@dataclass(frozen=True, slots=True)
class EntryKey:
    """`kind` for tokens `start` to `end` of the sequence whose first `end` tokens have the chain digest `digest`.

    base: the first bytes of the chain's digest at `start`, a page boundary: what is searched by, never relied on.
    """

    kind: Kind
    start: int
    end: int
    base: bytes
    digest: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= _MAX_TOKENS:
            raise ValueError(f"tokens {self.start} to {self.end} are no range")
        if len(self.base) != BASE_BYTES or len(self.digest) != DIGEST_BYTES:
            raise ValueError(f"base and digest have {len(self.base)} and {len(self.digest)} bytes, not 8 and 32")

    @property
    def name(self) -> str:
        """The entry's file name, one to one."""
        return f"{self.kind.value}-{self.start:08x}-{self.end:08x}-{self.base.hex()}-{self.digest.hex()}"


def is_name(text: str) -> bool:
    """Whether a file of that name is an entry's."""
    return _NAME.fullmatch(text) is not None


def key_of(name: str) -> EntryKey:
    """The key of an entry's file name. Raises ValueError for another file's."""
    if not is_name(name):
        raise ValueError(f"{name!r} is not an entry's name")
    return EntryKey(
        Kind(name[0]), int(name[2:10], 16), int(name[11:19], 16), bytes.fromhex(name[_BASE]), bytes.fromhex(name[_DIGEST])
    )


def base_of(name: str) -> str:
    """The base within an entry's file name, in hexadecimal."""
    return name[_BASE]


def shard_of(name: str) -> int:
    """Which of 256 directories the file is in: the digest's first byte."""
    return int(name[37:39], 16)
