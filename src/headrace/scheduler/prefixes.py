"""The prefix cache as the scheduler uses it; what is done in which order: docs/decisions/0017-prefix-index.md."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.cache.checkpoint_places import clip
from headrace.cache.layout import CacheLayout
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.match import Match
from headrace.cache.prefix.miss import Miss
from headrace.cache.prefix.prefills import Prefills
from headrace.cache.prefix.settings import PrefixSettings
from headrace.cache.prefix.tokens import TOKEN_BYTES, common_tokens, encode
from headrace.scheduler.hits import Hits
from headrace.scheduler.host_tier import HostMemory, HostTier
from headrace.scheduler.sequence import Sequence
from headrace.scheduler.ssd_tier import Read, SsdSettings
from headrace.types import HostCopies, PageCopy, PageUpdate, StateCopy

AHEAD_PAGES, AHEAD_SLOTS, AHEAD_ENTRIES = 256, 8, 32
"""Pages of a group and checkpoint slots that are kept free, and entries that are evicted for it in a step at most."""
AHEAD_SHARE = 64
"""But one part in so many of the cache at most."""
MOST_READS = 4
"""Of a prompt from SSD: where something was damaged, less is asked for."""
_OFF = PrefixSettings(FlopsPerByte(1.0, 0.0, 1), split_tokens=1)


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is cached of a waiting sequence's tokens, `key`. unread: why it is not to be used, if so. most: tokens that may be
    reused, for the last one's logits are wanted. writes: whether what the sequence computes is cached. host: what host memory
    has, where that is more; `match` is then of the pages that need not come from there.
    """

    key: bytes
    most: int
    match: Match
    unread: Miss | None
    writes: bool
    host: Match | None = None

    @property
    def tokens(self) -> int:
        """Where the sequence will begin."""
        return (self.host or self.match).tokens


@dataclass(frozen=True, slots=True)
class Start:
    """How a sequence begins: with `tokens` tokens, pages that hold them once `copies` are done, and a checkpoint's state."""

    lease: Lease
    tokens: int
    copies: tuple[PageCopy, ...]
    checkpoint: int | None
    from_host: bool = False


class Prefixes:
    """Pages of the sequences and, with settings, what is kept of them. Without, pages are free as soon as a sequence ends.

    cache: the device's; host: of host memory and the SSD, if there is any.
    """

    def __init__(
        self, layout: CacheLayout, settings: PrefixSettings | None, memory: HostMemory | None = None,
        ssd: SsdSettings | None = None,
    ) -> None:
        self._layout = layout
        self._on = settings is not None
        self.settings = settings or _OFF
        self._by_checkpoint = self.settings.places is not None
        self.cache = PrefixCache(layout, self.settings.policy, layout.checkpoints if self._by_checkpoint else None)
        self._prefills = Prefills(layout.page_tokens, self.settings.split_tokens)
        self.host = HostTier(self.cache, settings.host, settings, memory, ssd) if settings and settings.host else None
        self._restored: list[tuple[Lease, tuple[int, ...]]] = []  # what comes back from the host in the plan in the making
        self._nothing = Match(0, 0, None, locks=(0,) * len(layout.groups))
        self._due: dict[int, int] = {}  # checkpoint slot -> the slot whose state the next plan copies there
        self.hits = Hits()

    # A sequence begins

    def look_up(self, sequence: Sequence) -> Lookup | Read | None:
        """What is cached for a waiting sequence; None while a running one computes more of what it begins with, or reads leave
        no room; a read that has begun, where the SSD has more.
        """
        request, most = sequence.request, sequence.known - 1
        writes = self._on and request.params.cache_prompt
        key = sequence.key = self._key(sequence) if writes else b""
        unread = self._unread(sequence)
        if unread is not None:
            return Lookup(key, most, self._nothing, unread, writes)
        found = self._find(request.salt, key, most, writes)
        ahead = self._prefills.wait_for(request.salt, key, found.tokens, most)
        return self._from_ssd(sequence, found) if ahead is None else None

    def _from_ssd(self, sequence: Sequence, found: Lookup) -> Lookup | Read | None:
        ssd = self.host.ssd if self.host else None
        if self.host is None or ssd is None or not self._seeks(sequence):
            return found
        salt, more_than = sequence.request.salt, found.tokens + self.settings.split_tokens
        read = ssd.coming(salt, found.key, more_than)
        if read is None:
            there = ssd.find(salt, found.key, found.most, more_than)
            read = self.host.fetch(salt, found.key, there) if there else None
            if there is not None and read is None and ssd.reading:
                return None
            sequence.sought = sequence.sought + 1 if read else MOST_READS
            sequence.stateless = there is None and ssd.has_pages(salt, found.key)
        sequence.read = read or sequence.read
        return read or found

    @staticmethod
    def _seeks(sequence: Sequence) -> bool:
        """Whether it is to be looked for on SSD: once, and again where what was found could not be read."""
        damaged = sequence.read is not None and sequence.read.damaged
        return sequence.sought < (MOST_READS if damaged else 1)

    def _find(self, salt: str, key: bytes, most: int, writes: bool) -> Lookup:
        match = self.cache.match(salt, key, most)
        if self.host is not None:
            host = self.host.match(salt, key, most)
            if host.tokens >= match.tokens + self.settings.split_tokens:
                return Lookup(key, most, self.cache.match_pages(salt, key, host.tokens), None, writes, host)
        return Lookup(key, most, match, None, writes)

    @staticmethod
    def _key(sequence: Sequence) -> bytes:
        known = sequence.known
        same = len(sequence.key) == known * TOKEN_BYTES
        return sequence.key if same else encode(sequence.known_tokens(0, known))

    def _unread(self, sequence: Sequence) -> Miss | None:
        params = sequence.request.params
        if not self._on or not params.cache_prompt:
            return Miss.OPTED_OUT
        scored = params.prompt_logprobs is not None and not sequence.output  # else they were sent with the first token
        return Miss.PROMPT_LOGPROBS if scored else None

    def has_room(self, found: Lookup, tokens: int, reserve_tokens: int, headroom_pages: int) -> bool:
        """Whether the sequence's first `tokens` tokens find pages that leave `headroom_pages` to others in every group."""
        return self.cache.has_room(found.match, tokens, reserve_tokens, headroom_pages)

    def release(self) -> bool:
        """Have sequences that have ended give back the pages that they still keep; whether there were any. What was looked up
        before is to be looked up again.
        """
        return self.host is not None and self.host.release()

    def open(self, sequence: Sequence, found: Lookup, slot: int, waiting: Iterable[Sequence]) -> Start:
        """Begin a sequence in a slot with what was found. Where those of `waiting` part from it, its state will be kept."""
        start, miss = self._restore(sequence, found, slot) or self._open(sequence, found)
        if found.writes:
            self._prefills.begin(start.lease, found.key, self._places(sequence, found, start.tokens, waiting))
        if self._on and sequence.cached_tokens is None:
            self.hits.count(sequence, start.tokens, miss)
        return start

    def ends_early(self, lease: Lease, known: int, start: int) -> bool:
        """Whether the last of a sequence's `known` tokens is computed apart, since its state is kept, or begins, before it."""
        places = self._prefills.places(lease)
        at = bisect_left(places, known - 1)
        return start == known - 1 or tuple(places[at:]) == (known - 1,)

    def _open(self, sequence: Sequence, found: Lookup) -> tuple[Start, Miss | None]:
        salt = sequence.request.salt
        opened = self.cache.open(salt, found.key, found.most, unread=found.unread, writes=found.writes)
        checkpoint = opened.checkpoint.slot if opened.checkpoint else None
        return Start(opened.lease, opened.tokens, opened.copies, checkpoint), opened.miss

    def _restore(self, sequence: Sequence, found: Lookup, slot: int) -> tuple[Start, Miss | None] | None:
        """Begin with what host memory has, if that is more."""
        if found.host is None or self.host is None:
            return None
        salt, tokens = sequence.request.salt, found.host.tokens
        held = self.host.read(salt, found.key, found.host)
        if held is None:
            return None
        lease = self.cache.open_pages(salt, found.key, found.match, writes=found.writes)
        whole = lease.recorded(self._layout.page_tokens)
        if self.cache.extend(lease, sequence.known) is None:
            self.cache.close(lease)
            return None
        self.host.restore(held, lease, whole // self._layout.page_tokens, slot)
        return Start(lease, tokens, (), None, from_host=True), found.host.miss

    def may_arrive_later(self) -> bool:
        """Whether what comes from host memory is on its way beside the steps, so that nobody has to wait for it."""
        return self.host is not None and self.host.asynchronous

    def landed(self, step: int) -> bool:
        """Whether what the plan of a step brings from host memory is there."""
        return self.host is None or self.host.landed(step)

    def arrived(self, sequence: Sequence) -> None:
        """The plan in the making admits a sequence whose beginning comes from host memory. Others find it from then on."""
        assert sequence.holding is not None
        lease = sequence.holding.lease
        whole = lease.recorded(self._layout.page_tokens)
        self._restored.append((lease, sequence.known_tokens(whole, sequence.planned)))

    def _places(
        self, sequence: Sequence, found: Lookup, resumed: int, waiting: Iterable[Sequence]
    ) -> tuple[int, ...] | None:
        """Token counts at which the prompt's state is to be kept: also where it parts from what was computed, or will be next.

        Another request of the same prompt resumes before its last token, whose logits it needs.
        """
        if self.settings.places is None:
            return None
        parts = [found.match.known]
        for other in waiting:
            if other.request.salt == sequence.request.salt and other.request.params.cache_prompt:
                other.key = self._key(other)
                parts.append(common_tokens(found.key, other.key))
        splits = {min(part, found.most) for part in parts}
        return self.settings.places.of_prompt(
            sequence.known, resumed, sequence.request.message_ends, [split for split in splits if split > resumed]
        )

    def first_pages(self, lease: Lease) -> tuple[PageUpdate, ...]:
        """All pages that a sequence begins with."""
        kept = enumerate(zip(lease.first_kept, lease.pages, strict=True))
        return tuple(PageUpdate(group, first, tuple(pages[first:])) for group, (first, pages) in kept if pages[first:])

    # It grows

    def clip(self, lease: Lease, start: int, end: int) -> int:
        """Where a chunk of its prompt has to stop, since its state is wanted there."""
        return clip(start, end, self._prefills.places(lease))

    def extend(self, lease: Lease, position: int, tokens: int, reserve_tokens: int) -> tuple[PageUpdate, ...] | None:
        """Pages for its first `tokens` tokens, with nothing kept that no query at `position` or later can reach."""
        if tokens <= lease.room and reserve_tokens <= lease.room:
            return ()
        self.cache.drop_behind_windows(lease, position)
        updates = self.cache.extend(lease, tokens, reserve_tokens)
        if updates is None and self.release():
            updates = self.cache.extend(lease, tokens, reserve_tokens)
        return updates

    def begin_plan(self) -> None:
        """A plan is being made."""
        if self.host is not None:
            self.host.begin_plan()

    @property
    def outlived(self) -> bool:
        """Whether what is kept outlives the engine."""
        return self.host is not None and self.host.ssd is not None

    @property
    def copies_due(self) -> bool:
        """Whether something waits for a plan, to be copied to host memory."""
        return self.host is not None and self.host.copies_due

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until something has been read; whether anything was to be."""
        ssd = self.host.ssd if self.host else None
        if ssd is None or not ssd.reading:
            return False
        ssd.wait(seconds)
        return True

    def end(self) -> None:
        """The last plan was launched: what is to outlive the engine is written."""
        if self.host is not None and self.host.ssd is not None:
            self.host.ssd.close()

    def take_copies(self) -> tuple[StateCopy, ...]:
        """States that the plan in the making copies before its rows. Nothing more is opened for it."""
        due, self._due = self._due, {}
        self.cache.end_plan()
        return tuple(StateCopy(slot, checkpoint) for checkpoint, slot in due.items())

    def take_host_copies(self) -> HostCopies | None:
        """What the plan copies to and from host memory. What has come back is filed on the device too."""
        if self.host is None:
            return None
        for lease, tokens in self._restored:
            self.cache.record(lease, tokens)
        self._restored = []
        return self.host.take()

    def planned(self, sequence: Sequence, tokens: tuple[int, ...]) -> None:
        """A complete plan computes these known tokens of the sequence, up to `sequence.planned`."""
        holding = sequence.holding
        assert holding is not None
        self.cache.record(holding.lease, tokens)
        places = self._prefills.places(holding.lease)
        if sequence.planned in places[bisect_left(places, sequence.planned) :][:1]:
            self._checkpoint(holding.lease, holding.slot)
        if not sequence.prefilling:
            self._prefills.end(holding.lease)

    def committed(self, sequence: Sequence, tokens: int) -> None:
        """The sequence's first `tokens` tokens are computed, and known."""
        holding = sequence.holding
        assert holding is not None
        if holding.lease.writes:
            recorded = holding.lease.recorded(self._layout.page_tokens)
            self.cache.record(holding.lease, sequence.known_tokens(recorded, tokens))

    def close(self, sequence: Sequence) -> None:
        """The sequence ends or gives way, none of its rows in flight: what it computed is kept, its state at the end too."""
        holding = sequence.holding
        assert holding is not None
        lease = holding.lease
        if sequence.arrival is not None:
            assert self.host is not None
            self._prefills.end(lease)
            self.host.give_up(lease, holding.slot)
            self.cache.close(lease)
            return
        if lease.writes:
            self.committed(sequence, sequence.planned)
            if lease.recorded(self._layout.page_tokens) == sequence.planned:
                self._checkpoint(lease, holding.slot)
        self._prefills.end(lease)
        if not (self.host is not None and lease.writes and self._keep(sequence, lease)):
            self.cache.close(lease)

    def _keep(self, sequence: Sequence, lease: Lease) -> bool:
        assert self.host is not None
        return self.host.keep(lease, encode(sequence.known_tokens(0, lease.recorded(self._layout.page_tokens))))

    def idle(self) -> None:
        """Nothing runs: what has ended needs no pages."""
        self.release()

    def make_room(self) -> None:
        """Let go of what would have to go soon, while the device computes: plans of a large cache then find free pages."""
        pages = [min(AHEAD_PAGES, pool.total // AHEAD_SHARE) for pool in self.cache.pools]
        slots = min(AHEAD_SLOTS, self.cache.checkpoint_slots.total // AHEAD_SHARE)
        self.cache.make_room(pages, slots, AHEAD_ENTRIES)

    def _checkpoint(self, lease: Lease, slot: int) -> None:
        checkpoint = self.cache.checkpoint(lease)
        if checkpoint is not None:
            self._due[checkpoint] = slot
