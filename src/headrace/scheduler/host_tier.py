"""What is kept in host memory too: prefixes of sequences that have ended or given way, copied there and back by the runner.

The index of host memory is another PrefixCache, whose page ids and checkpoint slots are those of the host's pools. It is
written through: what a sequence leaves is copied when it ends, so that eviction on the device costs nothing. Until the copies
are done what they read may not be overwritten: a few plans long the sequence keeps its pages, and a plan that gives them away
has the device wait for them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.cache.layout import CacheLayout
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Held, Lease
from headrace.cache.prefix.match import Match
from headrace.cache.prefix.node import Checkpoint
from headrace.cache.prefix.settings import PrefixSettings
from headrace.cache.prefix.tokens import TOKEN_BYTES
from headrace.scheduler.restore_times import TierTimes
from headrace.scheduler.ssd_tier import Found, Read, SsdSettings, SsdTier
from headrace.types import HostCopies, PageCopy, StateCopy

LINGERS = 4
"""Plans for which a sequence that has ended keeps its pages, while they are copied."""
MOST_STATES = 3
"""Of a sequence's states that are not there yet, so many of the last are copied: its end, and the last message ends."""


@dataclass(slots=True)
class _Leaving:
    """A sequence that has ended, what is copied of it, and for how many plans that has been so."""

    lease: Lease
    states: list[Checkpoint]
    plans: int = 0


class HostMemory(Protocol):
    """What is asked of whoever copies."""

    def landed(self, step: int) -> bool:
        """Whether what the plan of a step, which was launched, brings back from host memory is there."""
        ...

    def take_times(self) -> list[float]:
        """Seconds that copies back took, of each that has ended since this was asked last."""
        ...


class HostTier:
    """device: the device's cache. layout: pages and checkpoints of host memory; there are no windows. memory: who copies; None
    where all copies of a plan are done before its rows. ssd: of what is behind host memory, if anything.
    """

    def __init__(
        self, device: PrefixCache, layout: CacheLayout, settings: PrefixSettings, memory: HostMemory | None = None,
        ssd: SsdSettings | None = None,
    ) -> None:
        self._memory = memory
        self._device = device
        self._by_checkpoint = settings.places is not None
        self.cache = PrefixCache(layout, settings.policy, layout.checkpoints if self._by_checkpoint else None)
        self._page_tokens = layout.page_tokens
        self._least_tokens = settings.split_tokens
        self._leaving: deque[_Leaving] = deque()
        self._given_back: list[Checkpoint] = []  # states that are copied by the plan in the making
        self._reading: list[Held] = []
        self._to_host: dict[tuple[int, int], int] = {}  # (group, host page) -> device page
        self._states: dict[int, int] = {}  # host checkpoint -> checkpoint slot
        self._from_host: list[PageCopy] = []
        self._resumed: list[StateCopy] = []
        self._waits = False
        self.restores = 0
        self.times = TierTimes("host")
        self.ssd = SsdTier(self.cache, ssd, by_checkpoint=self._by_checkpoint) if ssd else None

    # To host memory

    def keep(self, lease: Lease, key: bytes) -> bool:
        """Copy what a sequence of the device leaves. Whether it keeps its pages for it: then they are given back from here."""
        known = self.cache.match(lease.salt, key, len(key) // TOKEN_BYTES).tokens
        states = [each for each in self._device.states_of(lease) if each.tokens > known][-MOST_STATES:]
        end = states[-1].tokens if states else 0 if self._by_checkpoint else len(key) // TOKEN_BYTES
        if end - known < self._least_tokens:
            return False
        opened = self.cache.open(lease.salt, key[: end * TOKEN_BYTES], end)
        if opened.checkpoint is not None:
            self.cache.let_go(opened.checkpoint)  # what follows was computed on the device
        if self.cache.extend(opened.lease, end) is None:
            self.cache.close(opened.lease)
            return False
        self._copy_pages(lease, opened.lease, opened.tokens // self._page_tokens)
        kept = self._record(opened.lease, key, opened.tokens, end, states)
        there = [each for each in self.cache.states_of(opened.lease) if each.tokens > known]
        self.cache.close(opened.lease)
        if self.ssd is not None:
            self.ssd.keep(lease.salt, key[: end * TOKEN_BYTES], there)
        self._leaving.append(_Leaving(lease, kept))
        return True

    def _copy_pages(self, lease: Lease, target: Lease, first: int) -> None:
        for group, (pages, into) in enumerate(zip(lease.pages, target.pages, strict=True)):
            for page, place in zip(pages[first : len(into)], into[first:], strict=True):
                self._to_host.pop((group, place), None)
                self._to_host[group, place] = page

    def _record(self, lease: Lease, key: bytes, at: int, end: int, states: list[Checkpoint]) -> list[Checkpoint]:
        """File the tokens from `at` on, and the states on the way. Returns those that are copied."""
        tokens, kept = np.frombuffer(key, np.uint32).tolist(), []
        for state in states:
            self.cache.record(lease, tokens[at : state.tokens])
            at = state.tokens
            slot = self.cache.checkpoint(lease)
            if slot is not None:
                self._states[slot] = state.slot
                self._device.hold(state)
                kept.append(state)
        self.cache.record(lease, tokens[at:end])
        return kept

    def release(self) -> bool:
        """Give back the pages of all that have ended, copied or not; whether there were any."""
        found = bool(self._leaving)
        while self._leaving:
            self._give_back()
        return found

    def _give_back(self) -> None:
        leaving = self._leaving.popleft()
        self._device.close(leaving.lease)
        if leaving.plans == 0:  # a plan takes states before it copies any to the host
            self._given_back += leaving.states
        else:
            self._unhold(leaving.states)
        self._waits = True

    def _unhold(self, states: list[Checkpoint]) -> None:
        for state in states:
            self._device.unhold(state)

    # And back

    def match(self, salt: str, key: bytes, most: int) -> Match:
        """How much of a prompt could come back."""
        return self.cache.match(salt, key, most)

    def read(self, salt: str, key: bytes, match: Match) -> Held | None:
        """Have what was matched of a prompt stay until the plan is complete; None if it is not there any more."""
        held = self.cache.hold_pages(salt, key, match.tokens, match.checkpoint)
        if held is not None:
            self._reading.append(held)
        return held

    def restore(self, held: Held, lease: Lease, first: int, slot: int) -> None:
        """Bring pages `first` and later of what is read back, into a sequence's of the device, and the state into its slot."""
        self.restores += 1
        if held.checkpoint is not None:
            self._resumed.append(StateCopy(slot, held.checkpoint.slot))
        for group, (pages, into) in enumerate(zip(held.pages, lease.pages, strict=True)):
            for place in range(first, len(pages)):
                self._from_host.append(PageCopy(group, pages[place], into[place]))

    def landed(self, step: int) -> bool:
        """Whether a sequence may begin with what the plan of a step brings back, without others waiting for it."""
        return self._memory is None or self._memory.landed(step)

    @property
    def copies_due(self) -> bool:
        """Whether something waits for a plan, to be copied to host memory while nobody runs."""
        return self._memory is not None and bool(self._to_host or self._states)

    @property
    def asynchronous(self) -> bool:
        """Whether what comes back is on its way beside the steps."""
        return self._memory is not None

    def give_up(self, lease: Lease, slot: int) -> None:
        """Pages and a slot that something comes back into are given to others."""
        self._from_host = [copy for copy in self._from_host if copy.target not in lease.private[copy.group]]
        self._resumed = [copy for copy in self._resumed if copy.slot != slot]
        self._waits = True

    def fetch(self, salt: str, key: bytes, found: Found) -> Read | None:
        """Have what the SSD has of a prompt read; None where there is no room for it."""
        assert self.ssd is not None
        read = self.ssd.read(salt, key, found)
        if read is not None:  # what was to be copied there has been evicted
            for group, pages in enumerate(read.lease.private):
                for page in pages:
                    self._to_host.pop((group, page), None)
            self._states.pop(-1 if read.slot is None else read.slot, None)
        return read

    # Plans

    def begin_plan(self) -> None:
        """Give back the pages of those that have had them for long enough."""
        if self.ssd is not None:
            self.ssd.begin_plan()
        if self._memory is not None:
            self.times.add(self._memory.take_times())
        while self._leaving and self._leaving[0].plans >= LINGERS:
            self._give_back()

    def take(self) -> HostCopies | None:
        """What the plan, which is complete, copies; None for nothing."""
        if self.ssd is not None:
            self.ssd.take()
        copies = HostCopies(
            tuple(PageCopy(group, page, place) for (group, place), page in self._to_host.items()),
            tuple(StateCopy(slot, place) for place, slot in self._states.items()),
            tuple(self._from_host), tuple(self._resumed), self._waits,
        )
        for held in self._reading:
            self.cache.let_pages_go(held)
        self.cache.end_plan()
        for leaving in self._leaving:
            leaving.plans += 1
        self._unhold(self._given_back)
        self._given_back = []
        self._reading, self._to_host, self._states, self._from_host, self._resumed, self._waits = [], {}, {}, [], [], False
        return copies if copies != HostCopies() else None
