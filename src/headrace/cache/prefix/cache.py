"""The prefix cache of one engine: pages and checkpoint slots, what sequences hold of them, and what is kept for later ones.

Every page is free, owned by one sequence, or the index's, which counts its readers. What is to be done in which order, and why:
docs/decisions/0017-prefix-index.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cache.layout import CacheLayout
from headrace.cache.pages import GONE, PagePool
from headrace.cache.prefix.eviction import Eviction, Policy
from headrace.cache.prefix.lease import Held, Lease, Opened
from headrace.cache.prefix.match import Match, Walk, find, first_read, walk
from headrace.cache.prefix.miss import Miss
from headrace.cache.prefix.node import Checkpoint, Node
from headrace.cache.prefix.nodes import Nodes
from headrace.cache.prefix.room import Room
from headrace.cache.prefix.tokens import TOKEN_BYTES
from headrace.cache.prefix.writer import Writer
from headrace.cache.slots import SlotPool
from headrace.types import PageCopy, PageUpdate


class PrefixCache:
    """checkpoint_slots: slots for recurrent states, None for a model without any, which may be resumed at every token.

    The order of a plan: open() and extend() as often as needed, then end_plan(); what the plan's rows compute is recorded after
    that, so that no sequence of the same plan starts from it. A plan's page copies are done before anything writes a page.
    """

    def __init__(self, layout: CacheLayout, policy: Policy, checkpoint_slots: int | None = None) -> None:
        self.layout = layout
        self.pools = tuple(PagePool(count) for count in layout.pages)
        self.checkpoint_slots = SlotPool(checkpoint_slots or 0)
        self._by_checkpoint = checkpoint_slots is not None
        self._nodes = Nodes(layout)
        self._eviction = Eviction(self._nodes, self.pools, self.checkpoint_slots, policy, checkpoints=self._by_checkpoint)
        self._room = Room(self._nodes, self._eviction, self.pools, self.checkpoint_slots)
        self._writer = Writer(self._nodes, self._eviction)

    # A sequence begins

    def match(self, salt: str, key: bytes, most: int) -> Match:
        """How much of a prompt, as `encode` gives it, can be reused, `most` tokens or fewer. Changes nothing."""
        return find(self._nodes, salt, key, most, checkpoints=self._by_checkpoint)

    def has_room(self, match: Match, tokens: int, reserve_tokens: int, headroom_pages: int) -> bool:
        """Whether a sequence so matched can take pages for that many tokens and leave `headroom_pages` in every group."""
        return self._room.suffices(match, tokens, reserve_tokens, headroom_pages)

    def open(self, salt: str, key: bytes, most: int, *, unread: Miss | None = None, writes: bool = True) -> Opened:
        """Begin a sequence with what is cached of its prompt; with nothing where no page is free to copy a partial one into.

        unread: why the request must not be served from the cache, if so. writes: whether what it computes is cached.
        """
        if unread is not None:
            return self._begin(salt, unread, writes=writes)
        match = self.match(salt, key, most)
        if match.tokens == 0:
            return self._begin(salt, match.miss, writes=writes)
        return self._resume(salt, key, match, writes=writes) or self._begin(salt, Miss.NO_ROOM, writes=writes)

    def match_pages(self, salt: str, key: bytes, most: int) -> Match:
        """How many whole pages of a prompt are there, of `most` tokens or fewer, whatever states there are."""
        found = find(self._nodes, salt, key, most, checkpoints=False)
        whole = found.tokens // self.layout.page_tokens * self.layout.page_tokens
        return found if found.tokens == whole else find(self._nodes, salt, key, whole, checkpoints=False)

    def open_pages(self, salt: str, key: bytes, match: Match, *, writes: bool = True) -> Lease:
        """Begin a sequence with the whole pages that were matched; its state comes from elsewhere."""
        opened = self._resume(salt, key, match, writes=writes) if match.tokens else None
        return (opened or self._begin(salt, None, writes=writes)).lease

    def states_of(self, lease: Lease) -> list[Checkpoint]:
        """Checkpoints of what the sequence has recorded, the longest last."""
        found: list[Checkpoint] = []
        node: Node | None = lease.node
        page = bytes(lease.pending)
        while node is not None:
            found += self._eviction.in_page(node, page)
            page, node = self._nodes.first_page(node), node.parent
        return sorted(found, key=lambda each: each.tokens)

    def hold_pages(self, salt: str, key: bytes, tokens: int, checkpoint: Checkpoint | None = None) -> Held | None:
        """The pages of a prompt's first `tokens` tokens stay as they are until `let_pages_go`; None where one is missing. They
        are used, and so is `checkpoint`, the state there, which stays until `end_plan`.

        For models without windows.
        """
        root, count = self._nodes.roots.get(salt), -(-tokens // self.layout.page_tokens)
        way = walk(self._nodes, root, key[: tokens * TOKEN_BYTES]) if root else None
        node = way.node_of(count - 1) if way and way.whole * self.layout.page_tokens + way.common >= tokens else None
        if node is None:
            return None
        self._nodes.pin(node)
        self._eviction.use(node, checkpoint)
        runs = [(at, start - at.first, end - at.first) for at, start, end in self._nodes.runs(node, 0, count)][::-1]
        pages = [[page for at, a, b in runs for page in at.pages[group][a:b]] for group in range(len(self.pools))]
        return Held(node, pages, checkpoint)

    def let_pages_go(self, held: Held) -> None:
        """They may be evicted again."""
        self._nodes.unpin(held.node)
        self._eviction.offer(held.node)

    def hold(self, checkpoint: Checkpoint) -> None:
        """It is being copied away: its slot is not given to another until `unhold`."""
        self._eviction.hold(checkpoint)

    def unhold(self, checkpoint: Checkpoint) -> None:
        self._eviction.unhold(checkpoint)

    def let_go(self, checkpoint: Checkpoint) -> None:
        """A sequence that was opened with it does not read its state: it may be overwritten before the plan is complete."""
        self._eviction.let_go(checkpoint)

    def _begin(self, salt: str, miss: Miss | None, *, writes: bool) -> Opened:
        groups = range(len(self.pools))
        root = self._nodes.root(salt)
        self._nodes.pin(root)
        return Opened(Lease(salt, root, [[] for _ in groups], [set() for _ in groups], [0 for _ in groups], writes), 0, miss)

    def _resume(self, salt: str, key: bytes, match: Match, *, writes: bool) -> Opened | None:
        whole, rest = divmod(match.tokens, self.layout.page_tokens)
        assert match.walk is not None
        sources = self._sources(match, whole) if rest else []
        node = self._boundary(match.walk, whole)
        lease = Lease(salt, node, self._shared_pages(node, whole, match.tokens), [set() for _ in self.pools],
                      [0 for _ in self.pools], writes)
        self._nodes.pin(node)
        self._read_windows(lease, match.tokens, whole)
        self._eviction.use(node, match.checkpoint)
        if self.extend(lease, match.tokens) is None:
            self.close(lease)
            if match.checkpoint is not None:
                self.let_go(match.checkpoint)
            return None
        lease.pending += key[whole * self._nodes.page_bytes : match.tokens * TOKEN_BYTES]
        copies = [PageCopy(group, source, lease.pages[group][whole]) for group, source in enumerate(sources)]
        return Opened(lease, match.tokens, match.miss, tuple(copies), match.checkpoint)

    def _sources(self, match: Match, page: int) -> list[int]:
        """Of every group, the page to copy for a sequence that begins in the middle of page `page`."""
        if match.checkpoint is not None:
            backing = next(self._nodes.backing(match.checkpoint.node, match.checkpoint.rest))
            return [run[0] for run in backing.pages]
        assert match.walk is not None
        node = match.walk.node_of(page)
        assert node is not None
        return [run[page - node.first] for run in node.pages]

    def _boundary(self, way: Walk, pages: int) -> Node:
        """The node that ends after so many pages, cut there if it goes on."""
        node = way.node_of(pages - 1) if pages else None
        if node is None:
            return way.nodes[0]
        return node if self._nodes.end(node) == pages else self._nodes.split(node, pages - node.first)

    def _shared_pages(self, node: Node, whole: int, tokens: int) -> list[list[int]]:
        lists: list[list[int]] = []
        for group, window in enumerate(self._nodes.windows):
            first = 0 if window is None else min(whole, first_read(self._nodes, window, tokens))
            runs = [at.pages[group][a - at.first : b - at.first] for at, a, b in self._nodes.runs(node, first, whole)]
            lists.append([GONE] * first + [page for run in reversed(runs) for page in run])
        return lists

    def _read_windows(self, lease: Lease, tokens: int, whole: int) -> None:
        for group, window in enumerate(self._nodes.windows):
            if window is not None:
                first = min(whole, first_read(self._nodes, window, tokens))
                lease.first_kept[group] = first
                self._nodes.read_window(group, lease.node, first, whole, lease.pages[group], 1)

    # It grows

    def extend(self, lease: Lease, tokens: int, reserve_tokens: int = 0) -> tuple[PageUpdate, ...] | None:
        """Make room for the sequence's first `tokens` tokens, evicting for it; None, and it has no page more, if that fails.

        Full-context groups get room for `reserve_tokens` at once where that is more.
        """
        return self._room.extend(lease, tokens, reserve_tokens)

    def make_room(self, pages: Sequence[int], slots: int, entries: int) -> int:
        """Evict ahead of need, when there is time: up to so many entries, until `pages` of each group are free, and `slots` for
        checkpoints. Returns how many were evicted.
        """
        return self._room.make_ahead(pages, slots, entries)

    @property
    def unread_pages(self) -> tuple[int, ...]:
        """Of each group, pages that are kept for later sequences and can be evicted."""
        return self._room.unread

    def drop_behind_windows(self, lease: Lease, position: int) -> None:
        """Let go of pages of window groups that no query at `position` or later can reach."""
        self._room.drop_behind_windows(lease, position)

    # What it computed

    def record(self, lease: Lease, tokens: Sequence[int]) -> None:
        """The sequence's next tokens are computed, or will be before any later plan runs. Whole pages become the index's."""
        self._writer.record(lease, tokens)

    def reserve_slot(self) -> int | None:
        """A slot for a state that is on its way, for `checkpoint`, or to be released; None where there is none."""
        return self.checkpoint_slots.allocate() if self._eviction.free_slot() else None

    def checkpoint(self, lease: Lease, reserved: int | None = None) -> int | None:
        """A slot for the state that the sequence has at its recorded tokens; None if there is one already, or no slot.

        reserved: the slot that has it already.
        """
        node, rest = lease.node, bytes(lease.pending)
        if not self._by_checkpoint or not lease.writes or lease.recorded(self.layout.page_tokens) == 0:
            return None
        if rest in node.checkpoints or not self._windows_kept(lease):
            return None
        if reserved is None and not self._eviction.free_slot():
            return None
        if rest and next(self._nodes.backing(node, rest), None) is None:
            if (incomplete := node.children.get(rest)) is not None:  # a page of a window is gone
                if incomplete.refs:
                    return None
                self._eviction.give_back(self._nodes.detach(incomplete))
            self._writer.withdraw_tail(lease)
            self._writer.lend_tail(lease)
        slot = self.checkpoint_slots.allocate() if reserved is None else reserved
        self._eviction.keep(node, rest, slot)
        return slot

    def _windows_kept(self, lease: Lease) -> bool:
        """Whether the index, or the sequence's partial page, has what a sequence resumed here would read of windows."""
        tokens, last = lease.recorded(self.layout.page_tokens), self._nodes.end(lease.node)
        for group, window in enumerate(self._nodes.windows):
            if window is None:
                continue
            if lease.pending and lease.pages[group][last] == GONE:
                return False
            runs = self._nodes.runs(lease.node, first_read(self._nodes, window, tokens), last)
            if any(GONE in node.pages[group][start - node.first : end - node.first] for node, start, end in runs):
                return False
        return True

    # It ends

    def close(self, lease: Lease) -> None:
        """The sequence ends, or gives way: what it recorded stays in the index, the rest is free."""
        if lease.writes:
            self._writer.withdraw_tail(lease)
            self._writer.leave_tail(lease)
        for group, window in enumerate(self._nodes.windows):
            if window is not None:
                last = self._nodes.end(lease.node)
                self._nodes.read_window(group, lease.node, lease.first_kept[group], last, lease.pages[group], -1)
            self._room.release(lease, group, lease.pages[group])
        self._nodes.unpin(lease.node)
        self._eviction.offer(lease.node)
        self._nodes.prune(lease.node)

    def end_plan(self) -> None:
        """No more is opened for the plan in the making."""
        self._eviction.end_plan()
