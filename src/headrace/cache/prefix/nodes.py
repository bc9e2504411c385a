"""The index's nodes and what they own: every page of theirs is counted, and so is every page that a sequence reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from headrace.cache.layout import CacheLayout
from headrace.cache.pages import GONE
from headrace.cache.prefix.node import Node
from headrace.cache.prefix.tokens import TOKEN_BYTES

RUN_PAGES = 64
"""The longest run of one node: splitting one copies so much at most."""
REMEMBERED = 16_384
"""So many of the last evicted places are remembered, to tell an evicted prefix from one never seen."""


class Nodes:
    """A tree for each salt. owned[g]: pages of group g that nodes have; locked[g]: those among them that cannot be evicted."""

    def __init__(self, layout: CacheLayout) -> None:
        self.page_tokens = layout.page_tokens
        self.page_bytes = layout.page_tokens * TOKEN_BYTES
        self.windows = tuple(group.window for group in layout.groups)
        self.has_windows = any(window is not None for window in self.windows)
        self.owned = [0] * len(self.windows)
        self.locked = [0] * len(self.windows)
        self.roots: dict[str, Node] = {}
        self._salts: dict[int, str] = {}  # of roots, by their serial
        self.with_window_pages: list[OrderedDict[Node, None]] = [OrderedDict() for _ in self.windows]  # oldest use first
        self._lost: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._serial = 0

    def root(self, salt: str) -> Node:
        if salt not in self.roots:
            root = self._new(None, 0, b"", [[] for _ in self.windows])
            root.serial = -1 - abs(hash(salt))  # the same again, for what is remembered of it
            self.roots[salt] = root
            self._salts[root.serial] = salt
        return self.roots[salt]

    def prune(self, root: Node) -> None:
        """Forget a tree that has nothing and that nobody stands in."""
        if root.parent is None and root.serial in self._salts and not root.children and not root.refs:
            del self.roots[self._salts.pop(root.serial)]

    def _new(self, parent: Node | None, first: int, tokens: bytes, pages: list[list[int]]) -> Node:
        self._serial += 1
        readers = [None if window is None else [0] * len(run) for window, run in zip(self.windows, pages, strict=True)]
        return Node(self._serial, parent, first, tokens, pages, readers)

    def first_page(self, node: Node) -> bytes:
        return node.tokens[: self.page_bytes]

    def page(self, node: Node, offset: int) -> bytes:
        """Tokens of a page of its run."""
        return node.tokens[offset * self.page_bytes : (offset + 1) * self.page_bytes]

    def end(self, node: Node) -> int:
        """Index of the page after the node's last."""
        return node.first + node.count(self.page_bytes)

    # Growing and shrinking

    def attach(self, parent: Node, first: int, tokens: bytes, pages: list[list[int]]) -> Node:
        """A new child with these pages, which become the index's. No child of the parent has its first page."""
        node = self._new(parent, first, tokens, pages)
        parent.children.put(self.first_page(node), node)
        self._count(node, 1)
        return node

    def append(self, node: Node, tokens: bytes, pages: list[list[int]]) -> None:
        """More whole pages at the end of a run without children or checkpoints, read by one sequence."""
        self._count(node, -1)
        node.tokens += tokens
        for run, readers, more in zip(node.pages, node.readers, pages, strict=True):
            run.extend(more)
            if readers is not None:
                readers.extend([0] * len(more))
        self._count(node, 1)

    def truncate(self, node: Node, pages: int) -> list[list[int]]:
        """Take the last pages of an unread leaf, per group; with its last one the node is out of the tree."""
        keep = node.count(self.page_bytes) - pages
        if keep == 0:
            return self.detach(node)
        self._count(node, -1)
        taken = [run[keep:] for run in node.pages]
        node.tokens = node.tokens[: keep * self.page_bytes]
        node.pages = [run[:keep] for run in node.pages]
        node.readers = [None if readers is None else readers[:keep] for readers in node.readers]
        self._count(node, 1)
        return taken

    def detach(self, node: Node) -> list[list[int]]:
        """Take a leaf out of the tree. Returns its pages."""
        assert node.parent is not None and not node.children
        self._count(node, -1)
        node.parent.children.remove(self.first_page(node))
        node.parent = None
        return node.pages

    def split(self, node: Node, pages: int) -> Node:
        """Cut a run after so many pages: a new node takes these, and whoever stands at the old one's end stays there."""
        assert node.parent is not None
        cut = pages * self.page_bytes
        upper = self._new(node.parent, node.first, node.tokens[:cut], [run[:pages] for run in node.pages])
        upper.readers = [None if readers is None else readers[:pages] for readers in node.readers]
        upper.refs, upper.clock, upper.used = node.refs, node.clock, node.used
        node.parent.children.put(self.first_page(node), upper)
        node.parent, node.first, node.tokens = upper, node.first + pages, node.tokens[cut:]
        node.pages = [run[pages:] for run in node.pages]
        node.readers = [None if readers is None else readers[pages:] for readers in node.readers]
        upper.children.put(self.first_page(node), node)
        for group, window in enumerate(self.windows):
            if window is not None and node in self.with_window_pages[group]:
                self.with_window_pages[group][upper] = None
        return upper

    def _count(self, node: Node, sign: int) -> None:
        for group, (run, readers) in enumerate(zip(node.pages, node.readers, strict=True)):
            if readers is None:
                self.owned[group] += sign * len(run)
                self.locked[group] += sign * len(run) if node.refs else 0
                continue
            self.owned[group] += sign * sum(page != GONE for page in run)
            if sign > 0:
                self.with_window_pages[group][node] = None
            else:
                self.with_window_pages[group].pop(node, None)

    # Reading

    def pin(self, node: Node) -> None:
        """One more sequence stands at this node, and reads every page up to it."""
        at: Node | None = node
        while at is not None:
            at.refs += 1
            if at.refs == 1:
                self._lock(at, 1)
            at = at.parent

    def pin_child(self, child: Node) -> None:
        """A sequence that stood at the parent stands at this child of it now."""
        child.refs += 1
        if child.refs == 1:
            self._lock(child, 1)

    def unpin(self, node: Node) -> None:
        """A sequence leaves this node and those above it."""
        at: Node | None = node
        while at is not None:
            at.refs -= 1
            if at.refs == 0:
                self._lock(at, -1)
            at = at.parent

    def _lock(self, node: Node, sign: int) -> None:
        for group, readers in enumerate(node.readers):
            if readers is None:
                self.locked[group] += sign * len(node.pages[group])

    def read_window(self, group: int, node: Node, first: int, last: int, pages: list[int], change: int) -> None:
        """A sequence that stands at `node` begins (change 1) or ends (-1) to read pages first ... last - 1 of its list.

        Those of them that are not the index's (the sequence's own copies) are passed over.
        """
        for at, start, end in self.runs(node, first, last):
            readers = at.readers[group]
            assert readers is not None
            run = at.pages[group]
            for index in range(start, end):
                offset = index - at.first
                if run[offset] != GONE and run[offset] == pages[index]:
                    readers[offset] += change
                    self.locked[group] += change if readers[offset] == (change > 0) else 0

    def runs(self, node: Node, first: int, last: int) -> Iterator[tuple[Node, int, int]]:
        """The nodes with pages first ... last - 1 on the way to `node`, from the last up, and which of these each has."""
        at: Node | None = node
        while at is not None and at.parent is not None and self.end(at) > first:
            start, end = max(first, at.first), min(last, self.end(at))
            if start < end:
                yield at, start, end
            at = at.parent

    def fill_window(self, group: int, node: Node, offset: int, page: int) -> None:
        """A page that the index had let go of comes back."""
        node.pages[group][offset] = page
        self.owned[group] += 1
        self.with_window_pages[group][node] = None

    def take_window_pages(self, group: int, node: Node) -> list[int]:
        """Take the pages of a window group that nobody reads."""
        run, readers = node.pages[group], node.readers[group]
        assert readers is not None
        taken = [page for page, count in zip(run, readers, strict=True) if page != GONE and not count]
        node.pages[group] = [page if count else GONE for page, count in zip(run, readers, strict=True)]
        self.owned[group] -= len(taken)
        if all(page == GONE for page in node.pages[group]):
            self.with_window_pages[group].pop(node, None)
        return taken

    def backing(self, node: Node, rest: bytes) -> Iterator[Node]:
        """Nodes behind `node` whose first page starts with `rest`, with that page of every group."""
        if not self.has_windows:
            return node.children.starting(rest)
        return (child for child in node.children.starting(rest) if all(run[0] != GONE for run in child.pages))

    # What was here

    def remember(self, parent: Node, page: bytes) -> None:
        """A page with these tokens, which followed `parent`'s end, was evicted."""
        self._lost[parent.serial, hash(page)] = None
        if len(self._lost) > REMEMBERED:
            self._lost.popitem(last=False)

    def was_here(self, parent: Node, page: bytes) -> bool:
        """Whether a page with these tokens followed `parent`'s end and was evicted lately."""
        return (parent.serial, hash(page)) in self._lost
