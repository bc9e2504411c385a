"""gated_delta_verify and fold on NVIDIA cards of compute capability 8.0 and later, for heads of 128: CUDA C++, by NVRTC.

A step is one launch and needs no workspace. A block has one value head of a row, or all of a key head, which share what is made
of q and k; what that is, and what fold shares with it, is said in state.cuh and verify.cu.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import Card, card
from headrace.kernels.cuda_function import CudaFunction, compiled, with_primitives
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_verify import PRIMITIVES
from headrace.kernels.gated_delta_verify.ring import MAX_TOKENS, Ring

HEAD_DIM = 128
MOST_TAPS = 5
STATE_THREADS = 256
"""Of a block: those that have a state."""
ARRIVALS = 65_536
"""Rows times key heads of a launch, at most."""
RESERVED_BYTES = 1024
"""Of shared memory, by every block on Hopper and later."""

EXTRA = 4
"""Warps that a block of one value head can give something to do: two matrices and the convolution's inputs."""

_SPILLS_TOGETHER = (120,)
"""Compute capabilities for which two blocks of several value heads would not keep to the registers."""

_SIXTEEN = (torch.float16, torch.bfloat16)
_PITCH = HEAD_DIM + 8


class Form(NamedTuple):
    """group: value heads of a block, one or all of a key head. resident: blocks of a processor that registers suffice for.
    tokens: of a row, at most, 8 or 16. extra: warps besides those that have the state."""

    group: int
    resident: int
    tokens: int
    extra: int


class Layer(NamedTuple):
    """ratio: value heads of a key head. taps: of the convolution. drafts: of a half of the ring."""

    key_heads: int
    ratio: int
    taps: int
    drafts: int
    state: torch.dtype

    @classmethod
    def of(cls, tails: Tensor, states: Tensor, ring: Ring) -> Layer:
        _, _, drafts, key_heads, _ = ring.keys.shape
        return cls(key_heads, states.shape[1] // key_heads, tails.shape[1] + 1, drafts, states.dtype)


def form(rows: int, longest: int, layer: Layer, on: Card) -> Form:
    """Extra warps pay where every block has a processor, and sharing what is made of q and k where one-head blocks do not all
    run at once.
    """
    tokens, blocks = _eights(longest), rows * layer.key_heads * layer.ratio
    if layer.state != torch.float16:
        return Form(1, 1, tokens, extra=0)
    if blocks <= on.processors:
        return Form(1, 1, tokens, EXTRA)
    together = Form(layer.ratio, 2, tokens, extra=0)
    fits = layer.ratio <= 4 and 2 * (shared_bytes(together, layer) + RESERVED_BYTES) <= on.shared_bytes
    pays = fits and blocks > 2 * on.processors and on.capability not in _SPILLS_TOGETHER
    return together if pays else Form(1, 2, tokens, extra=0)


def form_of(tails: Tensor, states: Tensor, ring: Ring, rows: int, longest: int) -> Form:
    """Of this memory's kernel."""
    return form(rows, longest, Layer.of(tails, states, ring), card(tails.device))


def _eights(count: int) -> int:
    return 8 if count <= 8 else MAX_TOKENS


def shared_bytes(form: Form, layer: Layer) -> int:
    """Of a block: verify.cu's struct Shared, without what the compiler adds to reach a multiple of 16."""
    (group, _, tokens, _), drafts, width = form, _eights(layer.drafts), layer.taps
    parts, head = 2 + group, tokens * HEAD_DIM * 2
    vectors = (parts * tokens + (1 + group) * drafts) * _PITCH * 2
    window = max(parts * (tokens + width - 1) * HEAD_DIM * 2, 2 * group * head)
    taps = max(parts * width * HEAD_DIM * 2, group * tokens * (tokens + 8) * 4)
    squares = 2 * tokens * (24 if tokens > 8 else 8) * 2
    return vectors + window + taps + group * (squares + 3 * tokens * 4 + drafts * 4) + HEAD_DIM * 4 + 16


def _layer_macros(tails: Tensor, states: Tensor, ring: Ring, form: Form) -> dict[str, int]:
    layer = Layer.of(tails, states, ring)
    return {
        "BF16": int(tails.dtype == torch.bfloat16), "STATE_FP16": int(layer.state == torch.float16),
        "KEY_HEADS": layer.key_heads, "VALUE_HEADS": states.shape[1], "WIDTH": layer.taps, "DEPTH": layer.drafts,
        "DRAFTS": _eights(layer.drafts), "GROUP": form.group, "EXTRA": form.extra, "RESIDENT": form.resident,
    }


def verify_macros(tails: Tensor, states: Tensor, ring: Ring, form: Form) -> dict[str, int]:
    own = {"TOKENS": form.tokens, "ARRIVALS": ARRIVALS, "SHARED_BYTES": shared_bytes(form, Layer.of(tails, states, ring))}
    return _layer_macros(tails, states, ring, form) | own


def fold_macros(tails: Tensor, states: Tensor, ring: Ring) -> dict[str, int]:
    return _layer_macros(tails, states, ring, Form(1, 2, MAX_TOKENS, extra=0))


@cache
def source(name: str) -> str:
    return with_primitives(PRIMITIVES, *(Path(__file__).parent / file for file in ("state.cuh", f"{name}.cu")))


def _on(device: torch.device, name: str, macros: dict[str, int], shared: int = 0) -> CudaFunction:
    return compiled(source(name), name, macros, STATE_THREADS + 32 * macros["EXTRA"], shared, device)


def suits(tails: Tensor, states: Tensor, ring: Ring) -> bool:
    """Of a layer's memory alone, so that fold and a step are always of one kind, and so of the same bits."""
    dims = states.shape[2:] == (HEAD_DIM, HEAD_DIM) and tails.shape[1] < MOST_TAPS
    types = tails.dtype in _SIXTEEN and states.dtype in (torch.float16, torch.float32) and ring.inputs.dtype == tails.dtype
    rings = ring.keys.dtype == ring.deltas.dtype == torch.float16 and ring.decays.dtype == torch.float32
    return dims and types and rings and tails.is_cuda and card(tails.device).capability >= 80 and nvrtc.available()


def gated_delta_verify(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, ring: Ring, pending: Tensor, parity: Tensor,
    slots: Tensor, offsets: Tensor, certain: Tensor, longest: int = MAX_TOKENS, chosen: Form | None = None,
) -> Tensor:
    """As the public function, for memory that suits. chosen: another form than the shape's."""
    rows, heads, key_heads = len(slots), states.shape[1], ring.keys.shape[3]
    assert qkvz.dtype == ab.dtype == tails.dtype == weights.conv.dtype and qkvz.stride(1) == ab.stride(1) == 1
    assert qkvz.stride(0) % 8 == 0 and qkvz.data_ptr() % 16 == 0 and states.is_contiguous() and tails.is_contiguous()
    assert rows * key_heads <= ARRIVALS and weights.a_log.dtype == weights.dt_bias.dtype == weights.norm.dtype == torch.float32
    out = torch.empty(len(qkvz), heads * HEAD_DIM, dtype=qkvz.dtype, device=qkvz.device)
    chosen = chosen or form_of(tails, states, ring, rows, longest)
    macros = verify_macros(tails, states, ring, chosen)
    _on(qkvz.device, "verify", macros, macros["SHARED_BYTES"])(
        (heads // chosen.group, rows, 1), qkvz, ab, weights.conv.T.contiguous(), weights.a_log, weights.dt_bias, weights.norm,
        tails, states, slots, offsets, certain, pending, parity, ring.keys, ring.deltas, ring.decays, ring.inputs, out,
        len(states), len(qkvz), qkvz.stride(0), ab.stride(0), ctypes.c_float(weights.eps),
    )
    return out


def fold(
    tails: Tensor, states: Tensor, ring: Ring, parity: Tensor, source: Tensor, count: Tensor, target: Tensor
) -> None:
    if len(source):
        _on(tails.device, "fold", fold_macros(tails, states, ring))(
            (states.shape[1], len(source), 1), tails, states, ring.keys, ring.deltas, ring.decays, ring.inputs, parity, source,
            count, target,
        )
