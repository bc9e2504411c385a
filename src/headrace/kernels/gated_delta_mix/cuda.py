"""Rows of one token on NVIDIA cards of compute capability 8.0 and later, heads of 128 and fp16 states: CUDA C++, by NVRTC."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import gated_delta_verify, nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import compiled, with_primitives
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.rows import RowGroup

HEAD_DIM = 128
TAPS = range(2, 6)
THREADS = 128
ARRIVALS = 16_384
"""Rows times key heads, at most."""

_FOUR_RESIDENT = ((3, 4),)
"""Value heads of a key head, and taps, whose code for Hopper spills nothing with four blocks of a processor, as is fastest."""
_SIXTEEN = (torch.float16, torch.bfloat16)


def suits(qkvz: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, singles: RowGroup) -> bool:
    types = qkvz.dtype in _SIXTEEN and tails.dtype == qkvz.dtype and weights.conv.dtype == qkvz.dtype
    wide = all(x.dtype == torch.float32 for x in (weights.a_log, weights.dt_bias, weights.norm))
    shape = states.dtype == torch.float16 and states.shape[2:] == (HEAD_DIM, HEAD_DIM) and weights.conv.shape[1] in TAPS
    lies = weights.conv.stride() == (1, len(weights.conv)) and states.data_ptr() % 16 == 0
    fits = singles.count * _key_heads(tails, states) <= ARRIVALS
    there = qkvz.is_cuda and card(qkvz.device).capability >= 80 and nvrtc.available()
    return types and wide and shape and lies and fits and there


def _key_heads(tails: Tensor, states: Tensor) -> int:
    return (tails.shape[2] - states.shape[1] * states.shape[2]) // (2 * states.shape[3])


def macros(dtype: torch.dtype, key_heads: int, value_heads: int, width: int, capability: int) -> dict[str, int]:
    four = capability == 90 and (value_heads // key_heads, width) in _FOUR_RESIDENT
    return {
        "BF16": int(dtype == torch.bfloat16), "KEY_HEADS": key_heads, "VALUE_HEADS": value_heads, "WIDTH": width,
        "RESIDENT": 4 if four else 3, "ARRIVALS": ARRIVALS,
    }


@cache
def source() -> str:
    return with_primitives(gated_delta_verify.PRIMITIVES, Path(__file__).parent / "decode.cu")


def decode(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, singles: RowGroup, out: Tensor
) -> None:
    """Writes the rows of one token into out [T, HV DV]."""
    key_heads, heads, capability = _key_heads(tails, states), states.shape[1], card(qkvz.device).capability
    chosen = macros(qkvz.dtype, key_heads, heads, weights.conv.shape[1], capability)
    row_index, token_index = (at if isinstance(at, Tensor) else None for at in (singles.rows, singles.at))
    first_row, first_token = (0 if isinstance(at, Tensor) else at.start for at in (singles.rows, singles.at))
    compiled(source(), "decode", chosen, THREADS, 0, qkvz.device)(
        (heads, singles.count, 1), qkvz, ab, weights.conv, weights.a_log, weights.dt_bias, weights.norm, tails, states, slots,
        row_index, token_index, out, first_row, first_token, len(states), ctypes.c_float(weights.eps),
        ctypes.c_float(HEAD_DIM**-0.5), ctypes.c_longlong(qkvz.stride(0)), ctypes.c_longlong(ab.stride(0)),
    )
