"""What one sequence reads and owns of the cache's pages."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.cache.prefix.miss import Miss
from headrace.cache.prefix.node import Checkpoint, Node
from headrace.cache.prefix.tokens import TOKEN_BYTES
from headrace.types import PageCopy


@dataclass(slots=True, eq=False)
class Lease:
    """pages[g][i]: the page with tokens i * page_tokens ... of group g, or GONE. private[g]: those that the sequence owns; all
    others are the index's. first_kept[g]: the first page that is not GONE.

    node: where it stands in the tree: all tokens up to there are in the index. pending: its computed tokens past that, as
    bytes. tail: the node of its last, partial page, where the index has it already since a checkpoint needs it. writes: whether
    what it computes goes into the index. room: tokens that its pages have room for, with no page to be let go of; 0 where there
    are windows, since nobody knows before looking.
    """

    salt: str
    node: Node
    pages: list[list[int]]
    private: list[set[int]]
    first_kept: list[int]
    writes: bool
    pending: bytearray = field(default_factory=bytearray)
    tail: Node | None = None
    room: int = 0

    def recorded(self, page_tokens: int) -> int:
        """Tokens that were recorded as computed, those that it was resumed with included."""
        return self.node.end_tokens(page_tokens) + len(self.pending) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Opened:
    """A sequence's beginning: its pages hold `tokens` tokens once `copies` are done, and its state is `checkpoint`'s.

    miss: why these are not all that could be wanted, None if they are.
    """

    lease: Lease
    tokens: int
    miss: Miss | None
    copies: tuple[PageCopy, ...] = ()
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Pages of the index that stay as they are: pages[g] of group g, from a prompt's first token on. node: has the last.
    checkpoint: a state that stays for the plan in the making.
    """

    node: Node
    pages: list[list[int]]
    checkpoint: Checkpoint | None = None
