"""How the CUDA kernels are built for a shape and a card: plain arithmetic, so that CI can compile every form that users meet.

The choices were measured on an H200 (benchmarks/kernels/attention.py); elsewhere they follow from the same counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.kernels.card import Card

STEP_KEYS = 16
MOST_FEW_QUERIES = 8
"""Of a row for one key head, that are one column of tensor cores."""
MANY_WARPS = 8
MOST_MANY_QUERIES = 32
"""Of a row for one key head, that are columns rather than rows of the products, of pools of 16 bits."""
PACKED_KEYS = 32
_MOST_SLOTS = 5
SYSTEM_BYTES = 1024
"""Of shared memory, that each block takes besides its own."""

@dataclass(frozen=True, slots=True)
class Vectors:
    """Of a pool: numbers of a head (128 or 256) and bytes of a number."""

    dim: int
    itemsize: int

    @property
    def bytes(self) -> int:
        return self.dim * self.itemsize

    def slot_bytes(self, keys: int) -> int:
        """Keys' vectors and, of 8 bits, a word for the scale of each key and one of each value."""
        return keys * (self.bytes + (8 if self.itemsize == 1 else 0))


@dataclass(frozen=True, slots=True)
class FewQueries:
    """Warps of a block, steps of keys or of values in a warp's ring (odd), and blocks of a processor."""

    warps: int
    slots: int
    resident: int

    @property
    def static_bytes(self) -> int:
        """Shared memory that the kernel declares itself."""
        return 64 * self.warps + 16

    def shared_bytes(self, vectors: Vectors) -> int:
        return self.warps * self.slots * vectors.slot_bytes(STEP_KEYS)


@dataclass(frozen=True, slots=True)
class ManyQueries:
    """Eights of queries of a block, keys of a tile, parts of the queries for the logits, tiles of keys or of values in the
    ring, and blocks of a processor.
    """

    eights: int
    keys: int
    split: int
    slots: int
    resident: int

    @property
    def queries(self) -> int:
        return 8 * self.eights

    @property
    def static_bytes(self) -> int:
        """Shared memory that the kernel declares itself."""
        return 8 * self.queries * (1 + self.keys // STEP_KEYS)

    def shared_bytes(self, vectors: Vectors) -> int:
        operands = self.queries * vectors.dim * 2 + self.keys * (self.queries + 8) * 2
        return self.slots * vectors.slot_bytes(self.keys) + operands


@dataclass(frozen=True, slots=True)
class PackedQueries:
    """Sixteens of queries of a block, parts that share an item's keys (with a warp for each sixteen), and steps of PACKED_KEYS
    keys or values in a part's ring.
    """

    tiles: int
    parts: int
    slots: int
    resident = 1

    @property
    def queries(self) -> int:
        return 16 * self.tiles

    @property
    def threads(self) -> int:
        return 32 * self.tiles * self.parts

    @property
    def static_bytes(self) -> int:
        """Shared memory that the kernel declares itself."""
        return 8 * self.parts * self.queries + 32

    def shared_bytes(self, vectors: Vectors) -> int:
        """The rings and the queries, or all sums."""
        return max((self.parts * self.slots * PACKED_KEYS + self.queries) * vectors.bytes, 4 * self.queries * vectors.dim)


@dataclass(frozen=True, slots=True)
class HopperQueries:
    """Warpgroups (of 64 queries each), keys of a tile, blocks of a processor, and whether a block takes an item."""

    warpgroups: int
    keys: int
    resident: int
    items: bool

    @property
    def queries(self) -> int:
        return 64 * self.warpgroups

    @property
    def threads(self) -> int:
        """One more warpgroup brings keys and values."""
        return 128 * (self.warpgroups + 1)

    @property
    def largest_columns(self) -> int:
        """Dimensions of a product: a thread of two blocks a processor has not the registers for 256."""
        return 256 if self.resident == 1 else 128

    def shared_bytes(self, vectors: Vectors) -> int:
        """Two tiles of keys and two of values, the queries, and barriers."""
        return (4 * self.keys + self.queries) * 2 * vectors.dim + 64


def hopper_chunk_form(vectors: Vectors) -> HopperQueries:
    """As many keys as the registers for logits, sums and probabilities of a thread allow."""
    return HopperQueries(2, 80 if vectors.dim == 256 else 128, 1, items=False)


def hopper_items_form(vectors: Vectors) -> HopperQueries:
    """For pools of 16 bits; as many keys as let two blocks share a processor."""
    return HopperQueries(1, 32 if vectors.dim == 256 else 64, 2, items=True)


def few_queries_form(pairs: int, vectors: Vectors, card: Card) -> FewQueries:
    """pairs: rows times key heads. With as many as processors, smaller blocks side by side hide what each waits for."""
    small = FewQueries(4, 3, 2)
    if pairs >= card.processors and _fits(small, vectors, card):
        return small
    return next(form for form in (FewQueries(warps, 3, 1) for warps in range(8, 0, -1)) if _fits(form, vectors, card))


def many_queries_form(queries: int, vectors: Vectors, card: Card) -> ManyQueries:
    """queries: most of a row for one key head."""
    eights, keys = min(6, 2 * -(-queries // 16)), min(64, 16384 // vectors.bytes)
    split = next(n for n in (4, 3, 2) if eights % n == 0 and n * keys <= MANY_WARPS * STEP_KEYS)
    return next(form for form in (ManyQueries(eights, keys, split, 4, n) for n in (2, 1)) if _fits(form, vectors, card))


def packed_queries_form(queries: int, vectors: Vectors, card: Card) -> PackedQueries:
    """For pools of 16 bits; queries: most of a row for one key head. As many steps on their way as there is room for."""
    tiles = min((4, 3), key=lambda tiles: -(-queries // (16 * tiles)) * tiles)
    swept = (PackedQueries(tiles, 2, slots) for slots in range(_MOST_SLOTS, 1, -1))
    return next(form for form in swept if _fits(form, vectors, card))


def items_form(queries: int, vectors: Vectors, card: Card) -> ManyQueries | PackedQueries | HopperQueries:
    """For rows of more than MOST_FEW_QUERIES queries."""
    if vectors.itemsize == 2 and card.capability == 90:
        return hopper_items_form(vectors)
    if vectors.itemsize == 2 and queries > MOST_MANY_QUERIES:
        return packed_queries_form(queries, vectors, card)
    return many_queries_form(queries, vectors, card)


def split_form(
    queries: int, pairs: int, vectors: Vectors, card: Card
) -> FewQueries | ManyQueries | PackedQueries | HopperQueries:
    """For rows that are split. queries: most of a row for one key head; pairs: rows times key heads."""
    return few_queries_form(pairs, vectors, card) if queries <= MOST_FEW_QUERIES else items_form(queries, vectors, card)


def _fits(form: FewQueries | ManyQueries | PackedQueries, vectors: Vectors, card: Card) -> bool:
    own = form.shared_bytes(vectors) + form.static_bytes
    return form.resident * (own + SYSTEM_BYTES) <= card.shared_bytes + SYSTEM_BYTES
