"""How each kernel is built for a shape and a card: plain arithmetic, so that all forms that users meet are compiled in CI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.kernels.card import Card
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS

Formats = Mapping[str, int]
"""What kernels are told of the types: those of low_bit_linear, and FP8 (codes of x: 1 e4m3, 0 int8)."""

BLOCK_OUTPUTS = 128
_SHARED_BYTES_EVERYWHERE = 101_376
_MOST_PARTS = 8
_OPS_OF_A_BYTE = 150
"""Arithmetic that takes the time of reading a byte, at the rates that these kernels reach."""
_LAUNCH_BYTES = 6 * 2**20
"""What could be read in the time that one more kernel takes."""


@dataclass(frozen=True, slots=True)
class FewRows:
    """Tiles of 16 outputs a warp, warps of a block (which share the inputs), chunks of 128 inputs in flight for each."""

    tiles: int
    warps: int
    stages: int

    def shared_bytes(self, formats: Formats, x_rows: int) -> int:
        lane = self.tiles * (8 * formats["BITS"] + 4 * _groups(formats) * (1 + formats["ZEROS"]))
        ring = self.warps * self.stages * (32 * lane + x_rows * INPUTS)
        return max(ring, self.warps * self.tiles * 512)


@dataclass(frozen=True, slots=True)
class ManyRows:
    """Eights of rows a block, chunks of 128 inputs in flight, parts that the inputs are cut into."""

    columns: int
    stages: int
    parts: int

    def shared_bytes(self, formats: Formats) -> int:
        weights = BLOCK_OUTPUTS * INPUTS * formats["BITS"] // 8
        stage = weights + 8 * self.columns * INPUTS + 8 * _groups(formats) * (32 + 8 * formats["ZEROS"])
        return max(self.stages * stage, 8 * self.columns * (BLOCK_OUTPUTS + 4) * 4)


@dataclass(frozen=True, slots=True)
class HopperRows:
    """Rows of x a block, chunks of 128 inputs in flight, blocks that share what they read of x."""

    block_rows: int
    stages: int
    cluster: int

    @property
    def threads(self) -> int:
        return 384

    def shared_bytes(self, formats: Formats) -> int:
        stage = self.block_rows * INPUTS + BLOCK_OUTPUTS * INPUTS * formats["BITS"] // 8
        return self.stages * stage + self.block_rows * (BLOCK_OUTPUTS * 2 + 16)

    def blocks(self, rows: int, outputs: int, processors: int) -> int:
        """As many as run at a time, or as there are tiles of the result."""
        tiles = -(-rows // self.block_rows) * -(-outputs // (BLOCK_OUTPUTS * self.cluster))
        return min(tiles, processors // self.cluster) * self.cluster


def _groups(formats: Formats) -> int:
    """Groups of a chunk of inputs that have scales of their own."""
    return INPUTS // formats["GROUP"] if formats["GROUP"] else 0


def x_rows_of(rows: int) -> int:
    """Rows of x that a few-rows kernel is built for."""
    return 1 << (rows - 1).bit_length()


def few_rows_form(rows: int, outputs: int, formats: Formats, card: Card) -> FewRows:
    x_rows, tiles = x_rows_of(rows), outputs // ROWS
    if tiles < 6 * card.processors or formats["BITS"] == 8:
        form = FewRows(1, 16, 3) if x_rows <= 2 else FewRows(1, 8, 4)
    else:
        form = FewRows(2, 8, 3) if x_rows <= 2 and tiles < 12 * card.processors else FewRows(2, 4, 3)
    while form.shared_bytes(formats, x_rows) > _SHARED_BYTES_EVERYWHERE:
        form = FewRows(form.tiles, form.warps, form.stages - 1) if form.stages > 2 else FewRows(form.tiles, form.warps // 2, 3)
    return form


def many_rows_form(rows: int, outputs: int, inputs: int, formats: Formats, card: Card) -> ManyRows:
    widened = bool(formats["FP8"]) and card.capability == 90  # to fp16, which takes more registers
    columns = 2 if rows <= 16 else 4 if rows <= 32 else 8
    stages = max(s for s in (2, 3, 4) if ManyRows(columns, s, 1).shared_bytes(formats) <= _SHARED_BYTES_EVERYWHERE)
    narrow = columns <= (2 if widened else 4)
    resident = 2 if narrow and 2 * ManyRows(columns, stages, 1).shared_bytes(formats) <= card.shared_bytes else 1
    blocks = -(-outputs // BLOCK_OUTPUTS) * -(-rows // (8 * columns))
    return ManyRows(columns, stages, _parts(rows, outputs, inputs, blocks, formats, resident * card.processors))


def _parts(rows: int, outputs: int, inputs: int, blocks: int, formats: Formats, slots: int) -> int:
    """Parts of the inputs that fill the card's `slots` for blocks best, against what adding the parts costs."""
    work = max(outputs * inputs * formats["BITS"] // 8, 2 * rows * outputs * inputs // _OPS_OF_A_BYTE)

    def cost(parts: int) -> float:
        rounds = -(-blocks * parts // slots)
        return work * rounds * slots / (blocks * parts) + (parts > 1) * (_LAUNCH_BYTES + 8 * parts * rows * outputs)

    return min((p for p in range(1, _MOST_PARTS + 1) if p == 1 or inputs // INPUTS >= 4 * p), key=cost)


_HOPPER_STATIC_BYTES = 2048
_MOST_HOPPER_STAGES = 8


def hopper_rows_form(rows: int, formats: Formats, card: Card) -> HopperRows:
    crowded = formats["GROUP"] == 32 and not formats["FP8"]  # integer sums of many groups, beside their float totals
    form = HopperRows(64, _MOST_HOPPER_STAGES, 1) if rows <= 64 or crowded else HopperRows(128, _MOST_HOPPER_STAGES, 2)
    while form.shared_bytes(formats) + _HOPPER_STATIC_BYTES > card.shared_bytes:
        form = replace(form, stages=form.stages - 1)
    return form


_LEAST_HOPPER_ROWS = 65
_LEAST_SIXTEEN_BIT_ROWS = {False: 33, True: 17}
"""Of int8 and of fp8."""
_LEAST_BUSY = 0.65
"""Of the processors, while tiles of products of codes are multiplied."""


def faster_in_sixteen_bits(rows: int, outputs: int, card: Card, *, fp8: bool) -> bool:
    """Whether Hopper's 16-bit kernel, which gives every processor a share of any work, is faster than products of codes."""
    if card.capability != 90:
        return False
    if rows < _LEAST_HOPPER_ROWS:
        return rows >= _LEAST_SIXTEEN_BIT_ROWS[fp8]
    tiles = -(-rows // 128) * -(-outputs // BLOCK_OUTPUTS)
    rounds = -(-tiles // card.processors)
    return tiles < _LEAST_BUSY * rounds * card.processors
