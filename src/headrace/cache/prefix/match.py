"""How much of a prompt is cached, where it can be resumed, and why not further."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from headrace.cache.pages import GONE
from headrace.cache.prefix.miss import Miss
from headrace.cache.prefix.node import Checkpoint, Node
from headrace.cache.prefix.nodes import Nodes
from headrace.cache.prefix.tokens import TOKEN_BYTES, common_tokens

_OTHER_SALTS = 64
"""So many other salts are asked for a prompt's first page, to give the reason of a miss."""


@dataclass(slots=True)
class Walk:
    """The way of a key down the tree. nodes: root first, those that agree with it as a whole. whole: pages that agree; further:
    the node that has page `whole`, of which `common` tokens agree (and, if it is the middle of a run, whole pages before it).
    """

    nodes: list[Node]
    whole: int
    further: Node | None
    common: int

    def node_of(self, page: int) -> Node | None:
        """The node that has the sequence's page `page`, of which not all tokens need to agree."""
        if self.further is not None and page >= self.further.first:
            return self.further
        return next((node for node in reversed(self.nodes) if node.first <= page and node.parent is not None), None)


@dataclass(frozen=True, slots=True)
class Match:
    """tokens: where the prompt can be resumed. known: tokens whose keys and values are cached: where that is more, `known` is a
    split point. checkpoint: the state to resume from, for models that have one. miss: why not further, None where nothing
    more was wanted. locks: per group, pages that nobody reads yet and that this prompt would.
    """

    tokens: int
    known: int
    miss: Miss | None
    checkpoint: Checkpoint | None = None
    locks: tuple[int, ...] = ()
    walk: Walk | None = field(default=None, repr=False)


def walk(nodes: Nodes, root: Node, key: bytes) -> Walk:
    """Down from the root as far as `key` agrees."""
    size = nodes.page_bytes
    path, node, at = [root], root, 0
    while True:
        page = key[at : at + size]
        child = node.children.get(page)
        if child is None or len(child.tokens) < size:
            child, common = node.children.nearest(page)
            return Walk(path, at // size, child, common)
        if not key.startswith(child.tokens, at):
            common = common_tokens(child.tokens, key, at // TOKEN_BYTES)
            whole, rest = divmod(common, nodes.page_tokens)
            return Walk(path, at // size + whole, child, rest)
        path.append(child)
        node, at = child, at + len(child.tokens)


def find(nodes: Nodes, salt: str, key: bytes, most: int, *, checkpoints: bool) -> Match:
    """What of `key` can be reused, at most `most` tokens; at a checkpoint only, or at any token."""
    root = nodes.roots.get(salt)
    if root is None:
        return Match(0, 0, _why_cold(nodes, salt, key) if most else None, locks=(0,) * len(nodes.windows))
    way = walk(nodes, root, key)
    known = min(way.whole * nodes.page_tokens + way.common, len(key) // TOKEN_BYTES)
    checkpoint = None
    if checkpoints:
        checkpoint = _last_checkpoint(nodes, way, key, most)
        tokens = checkpoint.tokens if checkpoint else 0
    else:
        tokens = _within_windows(nodes, way, min(known, most))
    miss = _why(nodes, way, salt, key, (tokens, known, most), checkpoints=checkpoints)
    return Match(tokens, known, miss, checkpoint, _locks(nodes, way, tokens), way)


def _last_checkpoint(nodes: Nodes, way: Walk, key: bytes, most: int) -> Checkpoint | None:
    for node in reversed(way.nodes):
        if not node.checkpoints:
            continue
        end = node.end_tokens(nodes.page_tokens)
        for count in range(min(nodes.page_tokens - 1, most - end), -1, -1):
            found = node.checkpoints.get(key[end * TOKEN_BYTES : (end + count) * TOKEN_BYTES])
            if found is not None:
                return found
    return None


def _within_windows(nodes: Nodes, way: Walk, tokens: int) -> int:
    """The most tokens, up to `tokens`, that all pages are there for."""
    while (missing := missing_page(nodes, way, tokens)) is not None:
        tokens = missing * nodes.page_tokens
    return tokens


def missing_page(nodes: Nodes, way: Walk, tokens: int) -> int | None:
    """The last page that a sequence resumed at `tokens` would read and that is gone."""
    found = -1
    last = -(-tokens // nodes.page_tokens)
    for group, window in enumerate(nodes.windows):
        if window is not None:
            for page in range(last - 1, max(found, first_read(nodes, window, tokens) - 1), -1):
                node = way.node_of(page)
                if node is None or node.pages[group][page - node.first] == GONE:
                    found = page
                    break
    return found if found >= 0 else None


def first_read(nodes: Nodes, window: int, tokens: int) -> int:
    """The first page that queries at `tokens` and later read in a window group."""
    return max(0, tokens - window + 1) // nodes.page_tokens


def _locks(nodes: Nodes, way: Walk, tokens: int) -> tuple[int, ...]:
    last = tokens // nodes.page_tokens
    path = [*way.nodes[1:], *([way.further] if way.further is not None and way.further.first < last else [])]
    counts = []
    for group, window in enumerate(nodes.windows):
        first = 0 if window is None else first_read(nodes, window, tokens)
        counts.append(sum(_unread(node, group, first, last) for node in path if node.first < last))
    return tuple(counts)


def _unread(node: Node, group: int, first: int, last: int) -> int:
    run, readers = node.pages[group], node.readers[group]
    start, end = max(0, first - node.first), min(len(run), last - node.first)
    if readers is None:
        return 0 if node.refs else max(0, end - start)
    return sum(page != GONE and not count for page, count in zip(run[start:end], readers[start:end], strict=True))


def _why(
    nodes: Nodes, way: Walk, salt: str, key: bytes, found: tuple[int, int, int], *, checkpoints: bool
) -> Miss | None:
    """found: (resumed, known, wanted) tokens."""
    tokens, known, most = found
    if tokens >= most:
        return None
    if tokens < min(known, most):
        return Miss.NO_CHECKPOINT if checkpoints else Miss.WINDOW
    page = key[way.whole * nodes.page_bytes : (way.whole + 1) * nodes.page_bytes]
    if nodes.was_here(way.nodes[-1], page):
        return Miss.EVICTED
    return Miss.DIVERGED if known else _why_cold(nodes, salt, key)


def _why_cold(nodes: Nodes, salt: str, key: bytes) -> Miss:
    page = key[: nodes.page_bytes]
    others = islice((root for name, root in nodes.roots.items() if name != salt), _OTHER_SALTS)
    return Miss.SALT if any(next(root.children.starting(page), None) for root in others) else Miss.COLD
