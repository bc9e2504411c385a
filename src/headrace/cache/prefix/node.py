"""A node of the radix index: a run of pages and their tokens, the checkpoints at its end, and what follows."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.cache.prefix.tokens import TOKEN_BYTES, common_tokens


class Children:
    """What follows a node, by the tokens of the first page: whole pages, and partial ones that end a run.

    The keys are sorted, so that whoever shares most tokens with a page stands beside the place where it would go.
    """

    __slots__ = ("_keys", "_nodes")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._nodes: dict[bytes, Node] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, page: bytes) -> Node | None:
        return self._nodes.get(page)

    def put(self, page: bytes, node: Node) -> None:
        """Add a node, or put it in the place of the one with the same first page."""
        if page not in self._nodes:
            insort(self._keys, page)
        self._nodes[page] = node

    def remove(self, page: bytes) -> None:
        del self._nodes[page]
        del self._keys[bisect_left(self._keys, page)]

    def before(self, page: bytes) -> Node | None:
        """The node whose first page comes right before `page`."""
        at = bisect_left(self._keys, page)
        return self._nodes[self._keys[at - 1]] if at else None

    def starting(self, tokens: bytes) -> Iterator[Node]:
        """The nodes whose first pages start with `tokens`."""
        at = bisect_left(self._keys, tokens)
        while at < len(self._keys) and self._keys[at].startswith(tokens):
            yield self._nodes[self._keys[at]]
            at += 1

    def nearest(self, page: bytes) -> tuple[Node | None, int]:
        """A node that has most tokens in common with `page`, and how many."""
        at = bisect_left(self._keys, page)
        best: tuple[Node | None, int] = (None, 0)
        for key in self._keys[max(0, at - 1) : at + 1]:
            common = common_tokens(key, page)
            if common > best[1]:
                best = (self._nodes[key], common)
        return best


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A recurrent state at `tokens` tokens, kept in checkpoint slot `slot`.

    It belongs to the node that ends at the last page boundary at or before it; rest are its tokens past that boundary.
    holds: resumes of the plan in the making that read it. clock, used: the eviction's when it was last of use.
    """

    node: Node
    rest: bytes
    tokens: int
    slot: int
    clock: float = 0.0
    used: int = 0
    holds: int = 0


class Node:
    """A run of pages.

    first: index of its first page in a sequence. tokens: of its pages, all whole, but a node of one page without children may
    have fewer (a tail). pages[g]: page ids of group g, GONE where a window's page is not kept; readers[g] counts who reads
    each page of a window group (None for groups that keep all). refs: sequences that read the pages of its other groups,
    which are those that stand at it or below. checkpoints: by their tokens past the node's end, fewer than a page's.
    clock, used: the eviction's when it was last of use. priority: of its entry among the candidates for eviction, None without.
    """

    __slots__ = ("checkpoints", "children", "clock", "first", "pages", "parent", "priority", "readers", "refs", "serial",
                 "tokens", "used")

    def __init__(
        self, serial: int, parent: Node | None, first: int, tokens: bytes, pages: list[list[int]],
        readers: list[list[int] | None],
    ) -> None:
        self.serial = serial
        self.parent = parent
        self.first = first
        self.tokens = tokens
        self.pages = pages
        self.readers = readers
        self.refs = 0
        self.children = Children()
        self.checkpoints: dict[bytes, Checkpoint] = {}
        self.clock = 0.0
        self.used = 0
        self.priority: tuple[float, int] | None = None

    def count(self, page_bytes: int) -> int:
        """Pages of the run. page_bytes: of a page's tokens."""
        return -(-len(self.tokens) // page_bytes)

    def end_tokens(self, page_tokens: int) -> int:
        """Tokens of a sequence up to the node's end."""
        return self.first * page_tokens + len(self.tokens) // TOKEN_BYTES
