"""What is kept on SSD too, behind host memory: prefixes that outlive the engine, and come back through host memory.

It is written through: what goes to host memory is written as soon as it is there, so evicting it there costs nothing, and a
process that is killed has lost what its last second brought. A prompt that the SSD has more of is read into host memory first,
while others go on, and begins from there. Entries are blocks of pages, each under the digest of all tokens up to its end; and
states, with the pages past the last block boundary. A model without states has the latter too, of pages alone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Held, Lease
from headrace.cache.prefix.node import Checkpoint
from headrace.cache.prefix.tokens import TOKEN_BYTES, common_tokens
from headrace.cache.ssd import EntryKey, Kind, SsdStats, TokenChain, chain_root
from headrace.cache.ssd.host_entry import HostEntry, SsdCopies
from headrace.scheduler.restore_times import TierTimes

LOG = logging.getLogger(__name__)
PATIENCE_S = 10.0
"""The longest that a request waits for what is on SSD, before it is computed after all."""
HELD_SHARE = 4
"""Of host memory, one part in so many may wait to be written at most, or a single sequence's pages."""


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """copies: who reads and writes. fingerprint: of all that kept bytes depend on but tokens. block_pages: pages of a block."""

    copies: SsdCopies
    fingerprint: bytes
    block_pages: int
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class Found:
    """What the SSD has of a prompt: its first `tokens` tokens, of which `first`, a block boundary, are in host memory."""

    tokens: int
    first: int
    blocks: list[EntryKey]
    last: EntryKey | None


@dataclass(slots=True, eq=False)
class Read:
    """A prefix on its way into host memory. lease: its pages there; slot: its state's. over: it has come, or will not, or in
    part if it has `failed`.
    """

    salt: str
    key: bytes
    tokens: int
    first: int
    lease: Lease
    slot: int | None
    entries: list[HostEntry]
    began_s: float
    future: Future[int]
    over: bool = False
    failed: bool = False

    @property
    def damaged(self) -> bool:
        """Whether it has come in part. Not so what is only late: more of it would be, too."""
        return self.failed and self.future.done()


@dataclass(slots=True)
class _Save:
    """Pages and states of host memory that are being written."""

    held: Held
    states: list[Checkpoint]
    entries: list[HostEntry]
    future: Future[int] = field(default_factory=Future)

    @property
    def pages(self) -> int:
        return len(self.held.pages[0])


class SsdTier:
    """host: the cache of host memory. by_checkpoint: whether sequences resume at states only."""

    def __init__(self, host: PrefixCache, settings: SsdSettings, *, by_checkpoint: bool) -> None:
        self._host, self._settings, self._by_checkpoint = host, settings, by_checkpoint
        self._copies = settings.copies
        self._page_tokens = host.layout.page_tokens
        self._block_tokens = settings.block_pages * self._page_tokens
        self._due: list[_Save] = []  # whose copies to host memory are in no plan yet
        self._planned: list[_Save] = []  # whose copies are in the last plan
        self._saves: deque[_Save] = deque()
        self._reads: list[Read] = []
        self._limit_pages = host.pools[0].total // HELD_SHARE
        self.times = TierTimes("ssd")

    def _chain(self, salt: str, key: bytes) -> TokenChain:
        chain = TokenChain(chain_root(self._settings.fingerprint, salt), self._page_tokens, self._settings.block_pages)
        chain.extend_packed(key)
        return chain

    # To the SSD

    def keep(self, salt: str, key: bytes, states: Sequence[Checkpoint]) -> None:
        """Write a prompt that has just gone to host memory, with these states of it there."""
        if self._due or self._planned or self._saves:
            waiting = sum(each.pages for each in (*self._due, *self._planned, *self._saves))
            if waiting + len(key) // TOKEN_BYTES // self._page_tokens > self._limit_pages:
                return
        held = self._host.hold_pages(salt, key, len(key) // TOKEN_BYTES)
        if held is None:
            return
        chain = self._chain(salt, key)
        entries = [self._entry(held, each) for each in chain.blocks(0, len(chain)) if not self._copies.contains(each)]
        kept = []
        for state in states:
            entry = self._entry(held, chain.checkpoint(state.tokens), state.slot)
            if not self._copies.contains(entry.key):
                self._host.hold(state)
                kept.append(state)
                entries.append(entry)
        if not self._by_checkpoint and len(chain) % self._block_tokens:
            entries.append(self._entry(held, chain.checkpoint(len(chain))))
        self._due.append(_Save(held, kept, entries))

    def _entry(self, held: Held, key: EntryKey, state: int | None = None) -> HostEntry:
        return HostEntry(key, self._pages(held.pages, key), state)

    def _pages(self, pages: Sequence[Sequence[int]], key: EntryKey) -> tuple[tuple[int, ...], ...]:
        """Of a sequence's pages those of an entry: of a state, those past the last block boundary."""
        start = key.end // self._block_tokens * self._block_tokens if key.kind is Kind.CHECKPOINT else key.start
        first, last = start // self._page_tokens, -(-key.end // self._page_tokens)
        return tuple(tuple(run[first:last]) for run in pages)

    # And back

    def find(self, salt: str, key: bytes, most: int, more_than: int) -> Found | None:
        """What the SSD has of a prompt's first `most` tokens, if that reaches to `more_than` or further."""
        chain = self._chain(salt, key[: most * TOKEN_BYTES])
        first = self._in_host(salt, key, most)
        blocks = list(takewhile(self._copies.contains, chain.blocks(first, most)))
        reach = first + len(blocks) * self._block_tokens
        for start in range(reach, -1, -self._block_tokens):
            if start + self._block_tokens <= more_than:
                return None
            last = self._last(chain, start, most)
            tokens = last.end if last else 0 if self._by_checkpoint else start
            if tokens >= max(1, more_than):
                return Found(tokens, min(first, start), blocks[: max(0, start - first) // self._block_tokens], last)
        return None

    def has_pages(self, salt: str, key: bytes) -> bool:
        """Whether the SSD has the first block of a prompt, though perhaps no state behind it."""
        chain = self._chain(salt, key[: self._block_tokens * TOKEN_BYTES])
        return any(map(self._copies.contains, chain.blocks(0, len(chain))))

    def _in_host(self, salt: str, key: bytes, most: int) -> int:
        """The block boundary up to which pages are in host memory."""
        return self._host.match_pages(salt, key, most).tokens // self._block_tokens * self._block_tokens

    def _last(self, chain: TokenChain, start: int, most: int) -> EntryKey | None:
        """The longest kept prefix that ends in a block which begins at `start`."""
        end = min(most, start + self._block_tokens - 1)
        for page in range(end - end % self._page_tokens, start - 1, -self._page_tokens):
            there = self._copies.following(chain.digest(page), Kind.CHECKPOINT)
            for key in sorted((key for key in there if page <= key.end <= end), key=lambda each: -each.end):
                if key.digest == chain.digest(key.end):
                    return key
        return None

    def coming(self, salt: str, key: bytes, more_than: int) -> Read | None:
        """A read on its way that brings this prompt to `more_than` tokens or further, as far as they are alike."""
        for read in self._reads:
            if not read.over and read.salt == salt and min(common_tokens(read.key, key), read.tokens) >= max(1, more_than):
                return read
        return None

    def read(self, salt: str, key: bytes, found: Found) -> Read | None:
        """Bring it to host memory; None where there is no room."""
        match = self._host.match_pages(salt, key, found.first)
        if match.tokens < found.first:  # of a page that was to be had there only a part is left
            return None
        lease = self._host.open_pages(salt, key[: found.tokens * TOKEN_BYTES], match)
        slot = None
        if self._host.extend(lease, found.tokens) is not None:
            slot = self._host.reserve_slot() if self._by_checkpoint else None
            if not self._by_checkpoint or slot is not None:
                return self._start(salt, key, found, lease, slot)
        self._host.close(lease)
        return None

    def _start(self, salt: str, key: bytes, found: Found, lease: Lease, slot: int | None) -> Read:
        entries = [HostEntry(each, self._pages(lease.pages, each)) for each in found.blocks]
        if found.last is not None:
            entries.append(HostEntry(found.last, self._pages(lease.pages, found.last), slot))
        now_s = self._settings.clock()
        read = Read(salt, key[: found.tokens * TOKEN_BYTES], found.tokens, found.first, lease, slot, entries, now_s,
                    self._copies.read(entries))
        self._reads.append(read)
        return read

    @property
    def reading(self) -> bool:
        """Whether somebody waits for host memory to get what is on SSD."""
        return any(not each.over for each in self._reads)

    def wait(self, seconds: float) -> None:
        """For one of the reads, or so long."""
        wait([each.future for each in self._reads if not each.over], seconds, FIRST_COMPLETED)

    # Plans

    def take(self) -> None:
        """A plan is complete, with all copies to host memory that are due."""
        self._planned += self._due
        self._due = []

    def begin_plan(self) -> None:
        """The last plan was launched. Note what has been read and written."""
        for save in self._planned:
            save.future = self._copies.write(save.entries)
            self._saves.append(save)
        self._planned = []
        for _ in range(len(self._saves)):
            save = self._saves.popleft()
            if save.future.done():
                self._release(save)
            else:
                self._saves.append(save)
        for read in list(self._reads):
            if read.future.done():
                self._reads.remove(read)
                self._finish(read)
            elif not read.over and self._settings.clock() - read.began_s > PATIENCE_S:
                read.over = read.failed = True
                LOG.warning("ssd cache: %d tokens have not been read for %g s: they are computed", read.tokens, PATIENCE_S)

    def _release(self, save: _Save) -> None:
        self._host.let_pages_go(save.held)
        for state in save.states:
            self._host.unhold(state)

    def _finish(self, read: Read) -> None:
        """File what has come: all of it, or whole blocks, from which another read may go on."""
        read.over = True
        count = 0 if read.future.exception() else read.future.result()
        whole = count == len(read.entries)
        tokens = read.tokens if whole else read.first + count * self._block_tokens
        self._host.record(read.lease, np.frombuffer(read.key, np.uint32)[read.first : tokens].tolist())
        if read.slot is not None and not (whole and self._host.checkpoint(read.lease, read.slot) is not None):
            self._host.checkpoint_slots.release(read.slot)
        self._host.close(read.lease)
        read.failed = not whole
        if whole:
            self.times.add([self._settings.clock() - read.began_s])

    @property
    def waiting(self) -> int:
        """Entries that wait to be written."""
        return sum(len(each.entries) for each in (*self._due, *self._planned, *self._saves))

    def stats(self) -> SsdStats:
        return self._copies.stats()

    def close(self) -> None:
        """The last plan was launched: write what is to be written."""
        self.begin_plan()
        self._copies.close()
