"""What few_rows is told of the norms around its product and of a product beside it: the structures of its sources."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from headrace.kernels.low_bit_linear.layout import INPUTS, ROWS
from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm

MOST_OUTPUTS = 256
"""Of a product beside another, and of few_outputs.cu."""
MOST_PARTS = 8
WARPS_BESIDE = 8
"""What goes beside another product may take its time, but its blocks are not to wait for places: so many warps of all its parts
are enough.
"""
MOST_ROWS = 64
"""Of few_outputs.cu."""


class SquaresStructure(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_void_p), ("count", ctypes.c_int), ("row_step", ctypes.c_int), ("part_step", ctypes.c_int),
    ]

    @staticmethod
    def of(squares: Tensor) -> SquaresStructure:
        return SquaresStructure(squares.data_ptr(), squares.shape[1], *squares.stride())


class NormedStructure(ctypes.Structure):
    _fields_ = [("squares", SquaresStructure), ("eps", ctypes.c_float)]


class AddedStructure(ctypes.Structure):
    _fields_ = [
        ("residual", ctypes.c_void_p), ("weight", ctypes.c_void_p), ("total", ctypes.c_void_p), ("squares", SquaresStructure),
        ("offset", ctypes.c_float),
    ]


class FewOutputsStructure(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p), ("y", ctypes.c_void_p), ("sums", ctypes.c_void_p), ("raised", ctypes.c_void_p),
        ("outputs", ctypes.c_int), ("parts", ctypes.c_int),
    ]


class BesideStructure(ctypes.Structure):
    _fields_ = [("y", ctypes.c_void_p), ("outputs", ctypes.c_int), ("parts", ctypes.c_int)]


@dataclass(frozen=True, slots=True)
class Added:
    """y = (residual + product) (norm's weight): total and squares [rows, parts of the outputs] are written besides."""

    residual: Tensor
    norm: NormWeight
    total: Tensor
    squares: Tensor

    @staticmethod
    def into(residual: Tensor, norm: NormWeight, parts: int, *, rows_together: bool) -> Added:
        """With room for what is written. rows_together: rows' squares lie side by side, for readers whose lanes have rows; else
        those of a row.
        """
        total = torch.empty_like(residual, memory_format=torch.contiguous_format)
        shape = (parts, len(residual)) if rows_together else (len(residual), parts)
        squares = torch.empty(shape, dtype=torch.float32, device=residual.device)
        return Added(residual.contiguous(), norm.in_float32(), total, squares.T if rows_together else squares)

    def structure(self) -> AddedStructure:
        addresses = (tensor.data_ptr() for tensor in (self.residual, self.norm.weight, self.total))
        return AddedStructure(*addresses, SquaresStructure.of(self.squares), self.norm.offset)


@dataclass(frozen=True, slots=True)
class Beside:
    """y = x weight^T for a plain weight of few outputs. between: few_outputs_between of the device."""

    weight: Tensor
    y: Tensor
    between: tuple[Tensor, Tensor]

    def structure(self, warps: int) -> FewOutputsStructure:
        tensors = self.weight, self.y, *self.between
        parts = parts_of(self.weight.shape[1], warps, max(1, WARPS_BESIDE // warps))
        return FewOutputsStructure(*(tensor.data_ptr() for tensor in tensors), len(self.weight), parts)

    def blocks(self, warps: int) -> int:
        return len(self.weight) // ROWS * parts_of(self.weight.shape[1], warps, max(1, WARPS_BESIDE // warps))


def normed_structure(x: Activations) -> NormedStructure:
    if not isinstance(x, PendingNorm):
        return NormedStructure()
    return NormedStructure(SquaresStructure.of(x.squares), x.eps)


def x_rows_of(rows: int) -> int:
    """Rows of x of a block that makes few outputs."""
    return 8 if rows <= 8 else 16


def between_blocks() -> tuple[int, int]:
    """Numbers that such blocks leave for each other at most, and such blocks."""
    blocks = MOST_OUTPUTS // ROWS * MOST_ROWS // x_rows_of(MOST_ROWS) * (MOST_PARTS - 1)
    return blocks * ROWS * x_rows_of(MOST_ROWS), blocks


@cache
def few_outputs_between(device: int) -> tuple[Tensor, Tensor]:
    """These numbers, and the blocks' flags, which are zero between kernels. For one stream at a time."""
    (sums, blocks), on = between_blocks(), f"cuda:{device}"
    return torch.empty(sums, dtype=torch.float32, device=on), torch.zeros(blocks, dtype=torch.int32, device=on)


def parts_of(inputs: int, warps: int, most: int) -> int:
    """Parts that the inputs of few outputs are cut into: of a chunk for each warp, if they are not too many."""
    return min(most, -(-inputs // (INPUTS * warps)))
