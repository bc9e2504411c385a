"""Digests of prefixes: a SHA-256 chain over pages of tokens, whose root holds all else that a cached value depends on."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.cache.ssd.key import BASE_BYTES, EntryKey, Kind

_TOKEN_BYTES = 4
_ROOT_TAG = b"headrace token chain 1"


def chain_root(fingerprint: bytes, salt: str = "") -> bytes:
    """The digest of no tokens. Chains of different fingerprints (see plan.fingerprint) or salts have no digest in common."""
    root = hashlib.sha256(_ROOT_TAG)
    for part in (fingerprint, salt.encode("utf-8", "surrogatepass")):
        root.update(len(part).to_bytes(8, "little") + part)
    return root.digest()


class TokenChain:
    """Digests of a growing sequence's prefixes. That of n tokens is SHA-256 of the last block boundary's digest before them
    and of the tokens since, 4 bytes each: a block is hashed once, what lies past the last when it is asked for.

    page_tokens: of a page; block_pages: of a block, of which keys and values are kept together.
    """

    def __init__(self, root: bytes, page_tokens: int, block_pages: int = 1) -> None:
        if page_tokens < 1 or block_pages < 1:
            raise ValueError(f"page_tokens is {page_tokens}, block_pages {block_pages}")
        self._page_tokens = page_tokens
        self._block_tokens = page_tokens * block_pages
        self._boundaries = [root]
        self._packed = bytearray()

    def __len__(self) -> int:
        """Tokens so far."""
        return len(self._packed) // _TOKEN_BYTES

    def extend(self, tokens: Sequence[int]) -> None:
        """Append token ids. Raises ValueError for one that does not fit into 32 bits."""
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < 2**32:
            raise ValueError(f"token ids from {ids.min()} to {ids.max()} do not fit into 32 bits")
        self._packed += ids.astype("<u4").tobytes()

    def extend_packed(self, tokens: bytes) -> None:
        """The same, of ids as `cache.prefix.tokens.encode` gives them."""
        self._packed += tokens if sys.byteorder == "little" else np.frombuffer(tokens, np.uint32).astype("<u4").tobytes()

    def digest(self, tokens: int) -> bytes:
        """Of the first `tokens` tokens."""
        if not 0 <= tokens <= len(self):
            raise ValueError(f"a digest of {tokens} tokens was asked for, the chain has {len(self)}")
        blocks, tail = divmod(tokens, self._block_tokens)
        boundary = self._boundary(blocks)
        return self._link(boundary, blocks, tail) if tail else boundary

    def pages(self, start: int, end: int) -> EntryKey:
        """The key of keys and values of tokens `start`, a block boundary, to `end`."""
        self._check_boundary(start)
        return EntryKey(Kind.PAGES, start, end, self.digest(start)[:BASE_BYTES], self.digest(end))

    def blocks(self, first: int, tokens: int) -> Iterator[EntryKey]:
        """Keys of keys and values of whole blocks, from token `first`, a block boundary, on, up to `tokens` at most. Each is
        hashed when it is asked for.
        """
        self._check_boundary(first)
        size, begin = self._block_tokens, self.digest(first)
        for start in range(first, tokens - size + 1, size):
            end = self._boundary(start // size + 1)
            yield EntryKey(Kind.PAGES, start, start + size, begin[:BASE_BYTES], end)
            begin = end

    def checkpoint(self, tokens: int) -> EntryKey:
        """The key of a state after the first `tokens` tokens; its base is the last page boundary at or before them."""
        start = tokens - tokens % self._page_tokens
        return EntryKey(Kind.CHECKPOINT, start, tokens, self.digest(start)[:BASE_BYTES], self.digest(tokens))

    def _check_boundary(self, start: int) -> None:
        if start % self._block_tokens:
            raise ValueError(f"pages from token {start} on do not begin at a boundary of {self._block_tokens}")

    def _boundary(self, blocks: int) -> bytes:
        boundaries = self._boundaries
        for block in range(len(boundaries) - 1, blocks):
            boundaries.append(self._link(boundaries[block], block, self._block_tokens))
        return boundaries[blocks]

    def _link(self, boundary: bytes, block: int, tokens: int) -> bytes:
        first = block * self._block_tokens * _TOKEN_BYTES
        return hashlib.sha256(boundary + self._packed[first : first + tokens * _TOKEN_BYTES]).digest()
