"""How what sequences compute becomes the index's, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cache.pages import GONE
from headrace.cache.prefix.eviction import Eviction
from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.node import Node
from headrace.cache.prefix.nodes import RUN_PAGES, Nodes
from headrace.cache.prefix.tokens import TOKEN_BYTES, common_tokens, encode


class Writer:
    """Whole pages go into the index as they are recorded; the last, partial one when the sequence ends, or is lent before."""

    def __init__(self, nodes: Nodes, eviction: Eviction) -> None:
        self._nodes, self._eviction = nodes, eviction
        self._size = nodes.page_bytes

    def record(self, lease: Lease, tokens: Sequence[int]) -> None:
        """See PrefixCache.record."""
        if not lease.writes:
            return
        lease.pending += encode(tokens)
        if len(lease.pending) >= self._size:
            self.withdraw_tail(lease)
            end = len(lease.pending) // self._size * self._size
            run = bytes(lease.pending[:end])
            del lease.pending[:end]
            at = 0
            while at < len(run):
                child = lease.node.children.get(run[at : at + self._size])
                at += self._grow(lease, run, at) if child is None else self._follow(lease, child, run, at)

    def _follow(self, lease: Lease, child: Node, run: bytes, at: int) -> int:
        """Tokens that the index has already: the sequence keeps its own pages of them. Returns the bytes that agreed."""
        if not run.startswith(child.tokens, at):
            pages = common_tokens(child.tokens, run, at // TOKEN_BYTES) // self._nodes.page_tokens
            child = self._nodes.split(child, pages)
        self._nodes.pin_child(child)
        lease.node = child
        self._fill_windows(lease, child)
        return len(child.tokens)

    def _fill_windows(self, lease: Lease, node: Node, *, read: bool = True) -> None:
        """Give the index the window pages that it has let go of and that the sequence has computed again."""
        for group, readers in enumerate(node.readers):
            if readers is None:
                continue
            own, first = lease.pages[group], node.first
            for offset, page in enumerate(node.pages[group]):
                if page == GONE and own[first + offset] in lease.private[group]:
                    self._nodes.fill_window(group, node, offset, own[first + offset])
                    lease.private[group].remove(own[first + offset])
                    if read:
                        self._nodes.read_window(group, node, first + offset, first + offset + 1, own, 1)

    def _grow(self, lease: Lease, run: bytes, at: int) -> int:
        """Tokens that are new. Returns how many bytes of them one node took."""
        node, first = lease.node, self._nodes.end(lease.node)
        room = RUN_PAGES - node.count(self._size) if self._may_append(lease.node) else RUN_PAGES
        part = run[at : at + room * self._size]
        last = first + len(part) // self._size
        pages = [own[first:last] for own in lease.pages]
        if room < RUN_PAGES:
            self._nodes.append(node, part, pages)
        else:
            lease.node = self._attach(node, first, part, pages)
            self._nodes.pin_child(lease.node)
        for group, (taken, private) in enumerate(zip(pages, lease.private, strict=True)):
            private.difference_update(taken)
            if self._nodes.windows[group] is not None:
                self._nodes.read_window(group, lease.node, first, last, lease.pages[group], 1)
        return len(part)

    def _may_append(self, node: Node) -> bool:
        """Whether a run can grow at its end: nobody else stands there, and nothing else begins there."""
        alone = node.refs == 1 and not node.children and not node.checkpoints and node.parent is not None
        return alone and node.count(self._size) < RUN_PAGES

    def _attach(self, parent: Node, first: int, tokens: bytes, pages: list[list[int]]) -> Node:
        """A new node, which takes the place of a partial page with the same beginning that nobody writes any more."""
        node = self._nodes.attach(parent, first, tokens, pages)
        self._eviction.welcome(node)
        page = self._nodes.first_page(node)
        shorter, complete = parent.children.before(page), all(run[0] != GONE for run in pages)
        if shorter is not None and complete and not shorter.refs and page.startswith(shorter.tokens):
            self._eviction.give_back(self._nodes.detach(shorter))
        return node

    # Its last, partial page

    def lend_tail(self, lease: Lease) -> None:
        """The sequence's partial page becomes the index's, while the sequence goes on writing it."""
        first = self._nodes.end(lease.node)
        pages = [[own[first]] for own in lease.pages]
        lease.tail = self._attach(lease.node, first, bytes(lease.pending), pages)
        self._nodes.pin_child(lease.tail)
        for group, (run, private) in enumerate(zip(pages, lease.private, strict=True)):
            private.remove(run[0])
            if self._nodes.windows[group] is not None:
                self._nodes.read_window(group, lease.tail, first, first + 1, lease.pages[group], 1)

    def withdraw_tail(self, lease: Lease) -> None:
        """The partial page is the sequence's again, to be filed anew with more tokens."""
        tail, lease.tail = lease.tail, None
        if tail is None:
            return
        for group, window in enumerate(self._nodes.windows):
            if window is not None:
                self._nodes.read_window(group, tail, tail.first, tail.first + 1, lease.pages[group], -1)
        for private, run in zip(lease.private, self._nodes.detach(tail), strict=True):
            private.update(run)

    def leave_tail(self, lease: Lease) -> None:
        """At the end: the partial page stays in the index, unless its tokens are there already."""
        rest, node = bytes(lease.pending), lease.node
        first = self._nodes.end(node)
        if not rest or next(self._nodes.backing(node, rest), None) is not None:
            return
        same = node.children.get(rest)
        pages = [[own[first]] for own in lease.pages]
        if [GONE] in pages:
            return
        if same is not None:
            self._fill_windows(lease, same, read=False)
            return
        tail = self._attach(node, first, rest, pages)
        for private, run in zip(lease.private, pages, strict=True):
            private.difference_update(run)
        self._eviction.offer(tail)
