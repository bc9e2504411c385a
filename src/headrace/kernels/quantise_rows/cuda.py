"""quantise_rows on NVIDIA cards of compute capability 8.0 and later, by NVRTC: a block for each row, one read, one write."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import compiled, with_primitives
from headrace.kernels.quantise_rows.layout import padded

PIECE = 16
MOST_PIECES = 6
"""Of a thread; a row is held in registers."""
MOST_THREADS = 384


def suits(x: Tensor, *, gated: bool = False) -> bool:
    sixteen = x.is_cuda and x.dtype in (torch.float16, torch.bfloat16)
    inputs = x.shape[1] // 2 if gated else x.shape[1]
    fits = inputs % PIECE == 0 and 0 < inputs <= PIECE * MOST_PIECES * MOST_THREADS
    return sixteen and fits and card(x.device).capability >= 80 and nvrtc.available()


def quantise_rows(
    x: Tensor, codes: torch.dtype, *, tiled: bool = False, gated: bool = False, halves: bool = False
) -> tuple[Tensor, Tensor]:
    """As the public function. tiled: the codes in the order of `layout`, [padded rows, I], and as many scales. gated: x is
    [T, 2 I], and kernels.silu_mul of it is what is quantised. halves: a 256th of each code, in fp16, which has
    them all, and 256 times the scales.
    """
    rows, inputs = len(x), x.shape[1] // 2 if gated else x.shape[1]
    if x.stride(1) != 1 or x.stride(0) % 8 or x.data_ptr() % 16:
        x = x.contiguous()
    held = padded(rows) if tiled else rows
    out = torch.empty(held, inputs, dtype=torch.float16 if halves else torch.uint8, device=x.device)
    scales = torch.empty(held, dtype=torch.float32, device=x.device)
    if rows:
        macros = macros_of(x.dtype, codes, inputs, tiled=tiled, gated=gated, halves=halves)
        kernel = compiled(source(), "quantise_rows", macros, macros["THREADS"], 0, x.device)
        kernel((rows, 1, 1), x, out, scales, inputs, ctypes.c_longlong(x.stride(0)))
    return out if tiled or halves else out.view(codes), scales


def macros_of(
    dtype: torch.dtype, codes: torch.dtype, inputs: int, *, tiled: bool = False, gated: bool = False, halves: bool = False
) -> dict[str, int]:
    pieces = inputs // PIECE
    share = -(-pieces // MOST_THREADS)
    threads = -(-pieces // (32 * share)) * 32
    return {"BF16": int(dtype == torch.bfloat16), "FP8": int(codes != torch.int8), "THREADS": threads, "PIECES": share,
            "TILED": int(tiled), "GATED": int(gated), "HALVES": int(halves)}


@cache
def source() -> str:
    return with_primitives(Path(__file__).parent / "quantise_rows.cu")
