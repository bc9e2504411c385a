"""What leaves the index when pages or checkpoint slots are short: what saves the fewest prefill FLOPs per byte.

Priorities age (greedy dual): an entry's is its value plus the clock at its last use, and the clock is the priority of what was
evicted last. So what was dear but is not used any more goes in the end, and time alone changes no entry's priority. The heap's
numbers may be too low, where an entry was used since or what lies before it has gone: that is seen when it comes up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from headrace.cache.pages import GONE, PagePool
from headrace.cache.prefix.lazy_heap import LazyHeap, Priority
from headrace.cache.prefix.match import first_read
from headrace.cache.prefix.node import Checkpoint, Node
from headrace.cache.prefix.nodes import Nodes
from headrace.cache.prefix.tokens import TOKEN_BYTES
from headrace.cache.slots import SlotPool


class Policy(Protocol):
    """Values above 0, more for what is more worth keeping. start, end: tokens that would have to be computed again."""

    def pages(self, start: int, end: int) -> float:
        """Of pages, where a sequence may be resumed at any token."""
        ...

    def segment(self, start: int, end: int) -> float:
        """Of a checkpoint at `end` and the pages from the one before, at `start`, up to it."""
        ...

    def checkpoint(self, start: int, end: int) -> float:
        """Of a checkpoint at `end` without the pages, where the one before is at `start`."""
        ...


_FEW = 8
"""So many checkpoints are gone through one by one."""
STRANDED = -1.0
"""The priority of pages that no checkpoint reaches: below any other."""


class Eviction:
    """Frees pages and checkpoint slots. checkpoints: whether sequences resume at checkpoints only.

    Candidates are leaves that nobody reads, and checkpoints that no resume of the plan in the making reads.
    """

    def __init__(
        self, nodes: Nodes, pools: Sequence[PagePool], slots: SlotPool, policy: Policy, *, checkpoints: bool
    ) -> None:
        self._nodes, self._pools, self._slots, self._policy = nodes, pools, slots, policy
        self._checkpoints = checkpoints
        self._leaves: LazyHeap[Node] = LazyHeap(_is_candidate)
        self._points: LazyHeap[Checkpoint] = LazyHeap(_is_kept)
        self._window_users = [
            users for users, window in zip(nodes.with_window_pages, nodes.windows, strict=True) if window is not None
        ]
        self._leaf_clock = 0.0
        self._point_clock = 0.0
        self._uses = 0
        self._held: list[Checkpoint] = []

    # Candidates

    def use(self, node: Node, checkpoint: Checkpoint | None = None) -> None:
        """A sequence goes on from a node's end, with a checkpoint's state if there is one."""
        at = node
        self._uses += 1
        while at.parent is not None:
            at.clock, at.used = self._leaf_clock, self._uses
            for users in self._window_users:
                if at in users:
                    users.move_to_end(at)
            at = at.parent
        if checkpoint is not None:
            checkpoint.clock, checkpoint.used = self._point_clock, self._uses
            checkpoint.holds += 1
            self._held.append(checkpoint)

    def end_plan(self) -> None:
        """The plan in the making is complete: later ones may overwrite the checkpoints that it reads."""
        for checkpoint in self._held:
            self.unhold(checkpoint)
        self._held.clear()

    def hold(self, checkpoint: Checkpoint) -> None:
        """It is being copied away, and may not be overwritten until `unhold`."""
        checkpoint.holds += 1

    def let_go(self, checkpoint: Checkpoint) -> None:
        """The plan in the making does not read it after all."""
        self._held.remove(checkpoint)
        self.unhold(checkpoint)

    def unhold(self, checkpoint: Checkpoint) -> None:
        checkpoint.holds -= 1
        if checkpoint.holds == 0 and not _is_kept((0.0, 0), checkpoint):
            self._slots.release(checkpoint.slot)

    def offer(self, node: Node) -> None:
        """A node may have become a candidate, or one of less value. Others are passed over."""
        if node.children or node.refs or node.parent is None:
            return
        priority = self._leaf_priority(node)
        if node.priority is None or priority < node.priority:
            node.priority = priority
            self._leaves.push(priority, node)

    def keep(self, node: Node, rest: bytes, slot: int) -> None:
        """File a checkpoint at a node, `rest` of its tokens past the node's end."""
        tokens = node.end_tokens(self._nodes.page_tokens) + len(rest) // TOKEN_BYTES
        self._uses += 1
        checkpoint = Checkpoint(node, rest, tokens, slot, self._point_clock, self._uses)
        node.checkpoints[rest] = checkpoint
        self._points.push(self._point_priority(checkpoint), checkpoint)

    # Values

    def _leaf_priority(self, node: Node) -> Priority:
        value = self._leaf_value(node)
        return value if value == STRANDED else node.clock + value, node.used

    def _leaf_value(self, node: Node) -> float:
        if not self._checkpoints:
            return self._policy.pages(node.first * self._nodes.page_tokens, node.end_tokens(self._nodes.page_tokens))
        checkpoint = node.checkpoints.get(b"")
        if checkpoint is None and node.count(self._nodes.page_bytes) == 1:
            checkpoint = max(self._held_up(node), key=lambda held_up: held_up.tokens, default=None)
        return STRANDED if checkpoint is None else self._policy.segment(self._resume_before(checkpoint), checkpoint.tokens)

    def _held_up(self, node: Node) -> list[Checkpoint]:
        """The parent's checkpoints whose tokens past its end are in this node's first page alone."""
        assert node.parent is not None
        kept = node.parent.checkpoints
        if not kept or (len(kept) == 1 and b"" in kept):
            return []
        there = self.in_page(node.parent, self._nodes.first_page(node))
        return [c for c in there if c.rest and not self._backed(c, without=node)]

    @staticmethod
    def in_page(node: Node, page: bytes) -> list[Checkpoint]:
        """Checkpoints at a node's end or past it in a page of these tokens."""
        kept = node.checkpoints
        if len(kept) <= _FEW:
            return [checkpoint for rest, checkpoint in kept.items() if page.startswith(rest)]
        return [kept[rest] for end in range(0, len(page) + 1, TOKEN_BYTES) if (rest := page[:end]) in kept]

    def _backed(self, checkpoint: Checkpoint, without: Node | None = None) -> bool:
        """Whether a page, not of the node `without`, has the checkpoint's tokens past its node's end."""
        if not checkpoint.rest:
            return True
        for node in self._nodes.backing(checkpoint.node, checkpoint.rest):  # at most the second is another
            if node is not without:
                return True
        return False

    def _point_priority(self, checkpoint: Checkpoint) -> Priority:
        value = self._policy.checkpoint(self._resume_before(checkpoint), checkpoint.tokens)
        return checkpoint.clock + value, checkpoint.used

    def _resume_before(self, checkpoint: Checkpoint) -> int:
        """Token count of the nearest checkpoint before this one on its way, 0 if there is none."""
        node: Node | None = checkpoint.node
        page = checkpoint.rest
        while node is not None:
            if node.checkpoints:
                before = [c.tokens for c in self.in_page(node, page) if c is not checkpoint]
                if before:
                    return max(before)
            page, node = self._nodes.first_page(node), node.parent
        return 0

    # Pages

    def free_pages(self, group: int, count: int) -> None:
        """Evict until the group's pool has `count` free pages, or nothing more can be evicted."""
        while self._pools[group].free < count and self.free_some_pages(group, count):
            pass

    def free_some_pages(self, group: int, count: int) -> bool:
        """Evict one entry's pages, no more than are needed for `count` free pages of the group; whether there was one."""
        if self._nodes.windows[group] is not None:
            return self._free_some_window_pages(group)
        node = self._worst_leaf()
        if node is None:
            return False
        self._shrink(node, count - self._pools[group].free)
        return True

    def _worst_leaf(self) -> Node | None:
        while (entry := self._leaves.pop()) is not None:
            priority, node = entry
            node.priority = None
            now = self._leaf_priority(node)
            if now <= priority:
                self._leaf_clock = max(self._leaf_clock, priority[0])
                return node
            self.offer(node)
        return None

    def _shrink(self, node: Node, pages: int) -> None:
        """Free up to so many pages from a leaf's end, and the checkpoints that are stranded by it."""
        if (checkpoint := node.checkpoints.get(b"")) is not None:
            self._forget(checkpoint)
        nodes, parent = self._nodes, node.parent
        assert parent is not None
        count, held_up = node.count(nodes.page_bytes), self._held_up(node)
        taken = min(pages, count - 1 if held_up and count > 1 else count)
        whole = taken == count
        nodes.remember(parent if whole else node, nodes.page(node, count - taken))
        if whole:
            for checkpoint in held_up:
                self._forget(checkpoint)
        self.give_back(nodes.truncate(node, taken))
        self.offer(parent if whole else node)
        nodes.prune(parent)

    def give_back(self, pages: Sequence[Sequence[int]]) -> None:
        """Pages that were the index's are free."""
        for pool, run in zip(self._pools, pages, strict=True):
            pool.release([page for page in run if page != GONE])

    # Pages of windows

    def _free_some_window_pages(self, group: int) -> bool:
        """Pages of a window group alone, those of the node that was not used for longest; whether any are free now."""
        users, pool = self._nodes.with_window_pages[group], self._pools[group]
        for _ in range(len(users)):
            node = next(iter(users))
            taken = self._nodes.take_window_pages(group, node)
            if node in users:  # the others of its pages are read, so it is in use
                users.move_to_end(node)
            if taken:
                pool.release(taken)
                if self._checkpoints:
                    self._drop_unreachable(group, node)
                return True
        return False

    def _drop_unreachable(self, group: int, node: Node) -> None:
        """Drop the checkpoints that need a page of this node which is gone."""
        window = self._nodes.windows[group]
        assert window is not None and node.parent is not None
        before = [c for c in self.in_page(node.parent, self._nodes.first_page(node)) if not self._backed(c)]
        end = node.end_tokens(self._nodes.page_tokens)
        gone = [node.first + i for i, page in enumerate(node.pages[group]) if page == GONE]
        behind = [c for c in self._within(node, end + window) if gone and gone[-1] >= first_read(self._nodes, window, c.tokens)]
        for checkpoint in before + behind:
            self.drop(checkpoint)

    def _within(self, node: Node, tokens: int) -> Iterator[Checkpoint]:
        """Checkpoints at a node and behind it, up to so many tokens."""
        left = [node]
        while left:
            at = left.pop()
            yield from at.checkpoints.values()
            left.extend(child for child in at.children if child.first * self._nodes.page_tokens < tokens)

    # Checkpoints

    def free_slot(self) -> bool:
        """Make a checkpoint slot free by dropping the checkpoint of least value; whether there is one."""
        return bool(self._slots.free) or self.free_another_slot()

    def free_another_slot(self) -> bool:
        """Drop the checkpoint of least value that the plan in the making does not read; whether there was one."""
        held, free = [], self._slots.free
        while self._slots.free == free and (entry := self._points.pop()) is not None:
            priority, checkpoint = entry
            if checkpoint.holds:
                held.append(entry)
                continue
            now = self._point_priority(checkpoint)
            if now > priority:
                self._points.push(now, checkpoint)
                continue
            self._point_clock = max(self._point_clock, priority[0])
            self.drop(checkpoint)
        for entry in held:
            self._points.push(*entry)
        return self._slots.free > free

    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint. Pages that it alone reached are the next to go."""
        self._forget(checkpoint)
        self.offer(checkpoint.node)
        if checkpoint.rest and (backing := next(checkpoint.node.children.starting(checkpoint.rest), None)) is not None:
            self.offer(backing)

    def _forget(self, checkpoint: Checkpoint) -> None:
        del checkpoint.node.checkpoints[checkpoint.rest]
        if not checkpoint.holds:
            self._slots.release(checkpoint.slot)

    def welcome(self, node: Node) -> None:
        """A node is new."""
        self._uses += 1
        node.clock, node.used = self._leaf_clock, self._uses


def _is_candidate(priority: Priority, node: Node) -> bool:
    """Whether an entry is the node's latest and the node a leaf that nobody reads; a node that is not has no entry any more."""
    if node.children or node.refs or node.parent is None:
        if node.priority == priority:
            node.priority = None
        return False
    return node.priority == priority


def _is_kept(_: Priority, checkpoint: Checkpoint) -> bool:
    return checkpoint.node.checkpoints.get(checkpoint.rest) is checkpoint
