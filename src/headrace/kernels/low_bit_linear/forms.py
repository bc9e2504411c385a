"""How each kernel is built for a shape and a card: plain arithmetic, so that every form that users meet can be compiled in CI.

The choices were measured on an H200 (benchmarks/kernels/low_bit_linear.py); elsewhere they follow from the same counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.kernels.card import Card
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS
from headrace.kernels.remembered import remembered

Formats = Mapping[str, int]
"""What kernels are told of the types: BF16, SCALE_BF16, BITS, GROUP (0: one scale a row), ZEROS."""

BLOCK_OUTPUTS = 128
_MOST_FEW_PARTS = 4
_CHUNKS_OF_A_PART = 40
_FEW_ROWS_SHARED_BYTES = 101_376 - 128  # besides the factors of a norm
_RESERVED_BYTES = 1024  # of shared memory, for each block
_PLACES_BESIDE = 8
"""For blocks of a product of few outputs beside: a block that finds no place at once takes as long as all of the others."""
_MOST_RESIDENT = 5
_REGISTERS = 65_536
_NEEDED_REGISTERS = {1: 64, 2: 80, 4: 112}
"""Of a thread of few_rows, by its block's tiles."""
_LINE_BYTES = 128  # of shared memory and of the L2 cache


@dataclass(frozen=True, slots=True)
class FewRows:
    """Tiles of 16 outputs of a block, its warps (which share the inputs), chunks of 128 inputs in flight for each, and parts
    that the inputs are cut into.
    """

    tiles: int
    warps: int
    stages: int
    parts: int = 1

    def shared_bytes(self, formats: Formats, x_rows: int) -> int:
        words = self.tiles * _words(formats)
        stage = self.tiles * 256 * formats["BITS"] + x_rows * 2 * INPUTS + 32 * words + 8 * words * formats["ZEROS"]
        return self.warps * max(self.stages * -(-stage // _LINE_BYTES) * _LINE_BYTES, 4 * self.sums(x_rows))

    def resident(self, formats: Formats, shared_bytes: int, card: Card) -> int:
        """Blocks of a processor that registers are made to suffice for, where the format leaves room for it."""
        if formats["ZEROS"] or _words(formats) > 1:
            return 1
        blocks = min(_REGISTERS // (32 * self.warps * _NEEDED_REGISTERS[self.tiles]), _MOST_RESIDENT)
        return max(1, min(blocks, (card.shared_bytes + _RESERVED_BYTES) // (shared_bytes + _RESERVED_BYTES)))

    def blocks(self, outputs: int) -> int:
        """Of a part."""
        return -(-outputs // (ROWS * self.tiles))

    def sums(self, x_rows: int) -> int:
        """Numbers of a block."""
        return x_rows * ROWS * self.tiles


def _words(formats: Formats) -> int:
    """Groups of a chunk of inputs."""
    return INPUTS // formats["GROUP"] if formats["GROUP"] else 0


def x_rows_of(rows: int) -> int:
    """Rows of x that a few-rows kernel is built for."""
    return 1 << (rows - 1).bit_length()


@remembered
def few_rows_form(rows: int, outputs: int, inputs: int, formats: Formats, card: Card, *, gated: bool = False) -> FewRows:
    """gated: in whole pairs of tiles."""
    x_rows = x_rows_of(rows)
    form = _few_rows_form(x_rows, outputs // ROWS, inputs // INPUTS, formats["BITS"] == 8, card)
    if gated and form.tiles == 1:
        form = replace(form, tiles=2, warps=min(form.warps, 8))
    while form.shared_bytes(formats, x_rows) > _FEW_ROWS_SHARED_BYTES:
        smaller = form.stages > 2
        form = replace(form, stages=form.stages - 1) if smaller else replace(form, warps=form.warps // 2, stages=3)
    return form


def _few_rows_form(x_rows: int, tiles: int, chunks: int, eight_bits: bool, card: Card) -> FewRows:
    if tiles < 6 * card.processors and chunks < 2 * _CHUNKS_OF_A_PART:
        return FewRows(1, 16, 3) if x_rows <= 2 else FewRows(1, 8, 4 if x_rows == 4 else 3)
    if tiles < 6 * card.processors:  # too few blocks for all processors, and parts that are worth a block
        parts = min(_MOST_FEW_PARTS, chunks // _CHUNKS_OF_A_PART)
        return FewRows(2, 8, 3, parts) if x_rows <= 2 else FewRows(4, 8, 2, parts)
    if eight_bits:
        return FewRows(2, 4, 3)
    many = tiles >= 12 * card.processors
    if x_rows <= 2:
        return FewRows(2, 8, 2 if many else 3)
    blocks_of_a_processor = card.shared_bytes // _FEW_ROWS_SHARED_BYTES
    if x_rows == 4 and blocks_of_a_processor > 1:
        return FewRows(2, 4, 4)
    four, places = FewRows(4, 8, 2), card.processors * blocks_of_a_processor - _PLACES_BESIDE
    return four if many or four.blocks(ROWS * tiles) <= places else FewRows(2, 4, 3)


def few_outputs_bytes(warps: int, x_rows: int) -> int:
    """Shared memory of a block of few_outputs.cuh."""
    return warps * (ROWS + x_rows) * 2 * INPUTS


def few_rows_between_blocks(card: Card) -> tuple[int, int]:
    """Numbers that blocks leave for each other at most, and such blocks."""
    tiles, others = 6 * card.processors, _MOST_FEW_PARTS - 1
    return others * (tiles + 4) * ROWS * 8, others * tiles
