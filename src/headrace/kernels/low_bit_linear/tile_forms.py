"""How the kernels for many rows are built, and how they share their work (work.cuh): plain arithmetic on shape and card.

Times are of an H200 (benchmarks/kernels/low_bit_linear.py); elsewhere the same counts decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.kernels.card import Card
from headrace.kernels.low_bit_linear.forms import Formats
from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS
from headrace.kernels.remembered import remembered

_BAND_ROWS = 2048
"""Rows whose tiles come before the next outputs: x of so many is in the L2 cache beside the weights of a few outputs."""
_EVEN = 0.85
"""Workers of which each has the same part of one tile are better than so many times more with parts of two."""
_EVENLY = 0.95
"""Workers that have whole tiles only are better than so many times more that share some."""
_REGISTERS, _REGISTER_STEP = 65_536, 8
_MOST_STAGES = 12
_SWIZZLE_BYTES = 1024
_LINE_BYTES = 128
_WORK_BYTES = 128
"""Of a block: work.cuh's Work, where it lies in shared memory."""


@dataclass(frozen=True, slots=True)
class Share:
    """workers: blocks. waves: whole tiles of each, before its share of the others. split: all workers of a tile add their sums,
    each for a part of it; otherwise the one with its first inputs does.
    """

    workers: int
    waves: int
    split: bool


@dataclass(frozen=True, slots=True)
class HopperRows:
    """Rows of x and warpgroups (of tiles times 64 outputs) of a tile, parts in which a chunk of 128 inputs is decoded, blocks
    of a processor, chunks in flight, tiles of 16 outputs of a warp.
    """

    block_rows: int
    warpgroups: int
    parts: int
    resident: int
    stages: int = _MOST_STAGES
    tiles: int = 1

    @property
    def block_outputs(self) -> int:
        return 64 * self.warpgroups * self.tiles

    def square_parts(self, outputs: int) -> int:
        """Parts of a row's outputs of which a block leaves the sum of squares."""
        return -(-outputs // self.block_outputs) * self.tiles

    @property
    def threads(self) -> int:
        return 128 * (self.warpgroups + 1)

    @property
    def copy_registers(self) -> int:
        """Of a thread that copies."""
        return 40 if self.warpgroups == 2 and self.resident == 1 else 32

    @property
    def registers(self) -> int:
        """Of a thread that multiplies: what the block has at its start, less what copying keeps."""
        start = _down(_REGISTERS // self.resident // self.threads) * self.threads
        return min(232, _down((start - 128 * self.copy_registers) // (128 * self.warpgroups)))

    def shared_bytes(self, formats: Formats) -> int:
        groups = INPUTS // formats["GROUP"] if formats["GROUP"] else 0
        tile = 2 * INPUTS * formats["BITS"] + 32 * groups
        stage = 2 * INPUTS * self.block_rows + 4 * self.warpgroups * self.tiles * tile + 16  # two barriers
        of_norms = 4 * self.block_rows * (1 + 4 * self.warpgroups * self.tiles)  # factors and squares
        return self.stages * -(-stage // _SWIZZLE_BYTES) * _SWIZZLE_BYTES + of_norms


@dataclass(frozen=True, slots=True)
class AmpereRows:
    """Rows of x of a tile of 256 outputs, chunks of 128 inputs in flight."""

    block_rows: int
    stages: int = 4
    block_outputs = 256
    resident = 1

    def shared_bytes(self, formats: Formats) -> int:
        groups = INPUTS // formats["GROUP"] if formats["GROUP"] else 0
        tile = 2 * INPUTS * formats["BITS"] + groups * (32 + 8 * formats["ZEROS"])
        stage = self.block_outputs // ROWS * tile + self.block_rows * INPUTS * 2
        return self.stages * (-(-stage // _LINE_BYTES) * _LINE_BYTES) + _WORK_BYTES


Rows = TypeVar("Rows", HopperRows, AmpereRows)

HOPPER_FORMS = {  # and microseconds for one chunk of a tile
    HopperRows(16, 2, 1, 2): 0.48,
    HopperRows(32, 2, 1, 2): 0.65,
    HopperRows(48, 2, 1, 2): 0.85,
    HopperRows(64, 4, 1, 1): 0.83,
    HopperRows(64, 2, 1, 1): 0.46,
    HopperRows(96, 2, 1, 1): 0.62,
    HopperRows(128, 2, 1, 1): 0.735,
    HopperRows(128, 4, 2, 1): 1.42,
}
GATED_FORMS = {  # of which a gate is a part
    HopperRows(16, 2, 1, 1, tiles=2): 0.48,
    HopperRows(32, 2, 2, 1, tiles=2): 0.6,
    HopperRows(48, 2, 1, 1, tiles=2): 0.78,
    HopperRows(64, 2, 2, 1, tiles=2): 0.89,
    HopperRows(128, 2, 2, 1, tiles=2): 1.57,
}
_TALL = 128
"""Rows of x for which weights are decoded once at least, if there are so many."""
_PROCESSORS_BESIDE = 4
"""That a product of few outputs beside another is given."""
_GATE_US, _GATE_BYTES_PER_US = 2.5, 2.5e6
"""What a launch for a gate takes besides its bytes, and they."""
_MOST_TILE = 32_768
"""Numbers of the largest tile of a processor, over its blocks."""


def sums_of(card: Card) -> int:
    """Float32 numbers on their way from worker to worker: two tiles of each."""
    return 2 * card.processors * _MOST_TILE


def row_band(block_rows: int) -> int:
    """Blocks of rows that follow each other."""
    return max(1, _BAND_ROWS // block_rows)


def share(row_blocks: int, output_blocks: int, inputs: int, places: int) -> Share:
    """For a card with `places` for workers. Of what is shared each has a unit at least; work.cuh counts on it."""
    tiles = row_blocks * output_blocks
    places = min(places, tiles * inputs // INPUTS)
    if tiles < places:
        parts = places // tiles
        if parts != 2 and parts * tiles >= _EVEN * places:
            return Share(parts * tiles, int(parts == 1), parts > 1)
        return Share(places, 0, parts > 2)
    waves = tiles // places
    fewer = next((w for w in range(places, int(_EVENLY * places), -1) if tiles % w == 0), None)
    if fewer:
        return Share(fewer, tiles // fewer, False)
    if row_blocks > 1 and tiles % places * inputs // INPUTS >= places:
        return Share(places, waves, True)  # workers that are at the same inputs at a time find them in the L2 cache
    return Share(places, waves - 1, False)


@remembered
def hopper_rows_form(
    rows: int, outputs: int, inputs: int, formats: Formats, card: Card, *, gated: bool = False, beside: bool = False
) -> HopperRows:
    """gated: where hopper_gates says so. beside: with room for a product of few outputs."""
    _, form = _best(GATED_FORMS if gated else HOPPER_FORMS, rows, outputs, inputs, card, beside=beside)
    return fitting(form, formats, card)


@remembered
def hopper_gates(rows: int, outputs: int, inputs: int, card: Card) -> bool:
    """Whether a gate of the first half of the outputs is best a part of the product."""
    apart_us = _GATE_US + 3 * rows * outputs / _GATE_BYTES_PER_US
    gated_us, form = _best(GATED_FORMS, rows, outputs, inputs, card)
    shared = hopper_share(form, rows, outputs, inputs, card)
    return not shared.split and gated_us < _best(HOPPER_FORMS, rows, outputs, inputs, card)[0] + apart_us


def _best(
    forms: Mapping[HopperRows, float], rows: int, outputs: int, inputs: int, card: Card, *, beside: bool = False
) -> tuple[float, HopperRows]:
    """Microseconds, and the form that takes so many."""
    def cost(form: HopperRows) -> float:
        shared = hopper_share(form, rows, outputs, inputs, card, beside=beside)
        tiles = -(-rows // form.block_rows) * -(-outputs // form.block_outputs)
        adding = 1.5 + form.block_rows * form.block_outputs / 6_500 if tiles != shared.waves * shared.workers else 0.0
        return tiles * (inputs // INPUTS) / shared.workers * forms[form] + adding

    fits = [form for form in forms if form.block_rows >= min(rows, _TALL) and not (beside and form.warpgroups < 2)]
    return min(((cost(form), form) for form in fits), key=lambda found: found[0])


def fitting(form: Rows, formats: Formats, card: Card) -> Rows:
    """With as many chunks in flight as fit."""
    while form.shared_bytes(formats) > _room(card, form.resident):
        form = replace(form, stages=form.stages - 1)
    return form


@remembered
def hopper_share(form: HopperRows, rows: int, outputs: int, inputs: int, card: Card, *, beside: bool = False) -> Share:
    row_blocks, output_blocks = -(-rows // form.block_rows), -(-outputs // form.block_outputs)
    return share(row_blocks, output_blocks, inputs, form.resident * card.processors - beside * parts_beside(form))


def parts_beside(form: HopperRows) -> int:
    """Blocks of a product of few outputs beside another: they take less time than the other's."""
    return _PROCESSORS_BESIDE * form.resident


@remembered
def ampere_rows_form(rows: int, formats: Formats, card: Card) -> AmpereRows:
    """Small groups and zero points leave no registers for 64 rows."""
    plain = formats["GROUP"] in (0, INPUTS) and not formats["ZEROS"]
    block_rows = next((r for r in (16, 32) if rows <= r), 64 if plain else 32)
    return fitting(AmpereRows(block_rows), formats, card)


def ampere_share(form: AmpereRows, rows: int, outputs: int, inputs: int, card: Card) -> Share:
    row_blocks, output_blocks = -(-rows // form.block_rows), -(-outputs // form.block_outputs)
    return share(row_blocks, output_blocks, inputs, card.processors)


def _room(card: Card, resident: int) -> int:
    """Shared bytes that each of `resident` blocks may have; the system takes 1,024 for each besides."""
    return min(card.shared_bytes, (card.shared_bytes + 1024) // resident - 1024)


def _down(registers: int) -> int:
    return registers // _REGISTER_STEP * _REGISTER_STEP
