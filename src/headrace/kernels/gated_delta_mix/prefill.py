"""Rows of two tokens and more on Hopper, heads of 128: convolution and gated delta rule in two kernels, CUDA C++ by NVRTC.

`prepare` makes of every chunk of 64 tokens what does not depend on the state before it, laid out as tensor cores read it;
`walk` goes through a row's chunks with 64 value dimensions of a head's state in the registers of a warpgroup.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import gated_delta_verify, nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import CudaFunction, compiled, with_primitives
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.rows import PackedRows

SIZE, HEAD_DIM = 64, 128
TAPS = range(2, 6)
GROUPS = range(1, 5)
"""Value heads of a key head, at most as many as there is shared memory for."""
TILE_BYTES = 2 * SIZE * SIZE
UNIT_BYTES, FACTOR_BYTES = 4 * TILE_BYTES, 2 * SIZE * 4
HEAD_BYTES = 4 * TILE_BYTES + FACTOR_BYTES
STAGES = 3
_SIXTEEN = (torch.float16, torch.bfloat16)


def suits(qkvz: Tensor, weights: MixWeights, tails: Tensor, states: Tensor) -> bool:
    types = qkvz.dtype in _SIXTEEN and tails.dtype == qkvz.dtype and weights.conv.dtype == qkvz.dtype
    types = types and states.dtype in (torch.float16, torch.float32)
    wide = all(x.dtype == torch.float32 for x in (weights.a_log, weights.dt_bias))
    shape = states.shape[2:] == (HEAD_DIM, HEAD_DIM) and weights.conv.shape[1] in TAPS
    shape = shape and states.shape[1] // _key_heads(tails, states) in GROUPS
    lies = weights.conv.stride() == (1, len(weights.conv)) and qkvz.stride(0) % 8 == 0
    lies = lies and all(x.data_ptr() % 16 == 0 for x in (qkvz, weights.conv, tails, states))
    return types and wide and shape and lies and qkvz.is_cuda and card(qkvz.device).capability == 90 and nvrtc.available()


def _key_heads(tails: Tensor, states: Tensor) -> int:
    return (tails.shape[2] - states.shape[1] * states.shape[2]) // (2 * states.shape[3])


def macros(dtype: torch.dtype, tails: Tensor, states: Tensor) -> dict[str, int]:
    key_heads, heads = _key_heads(tails, states), states.shape[1]
    return {
        "BF16": int(dtype == torch.bfloat16), "KEY_HEADS": key_heads, "HEADS": heads, "WIDTH": tails.shape[1] + 1,
        "WIDE_STATE": int(states.dtype == torch.float32), "STAGES": STAGES, "RESIDENT": resident(heads // key_heads),
    }


def prepare_bytes(group: int) -> int:
    """Shared memory of a block of `prepare`: unit vectors, M, P and L of each value head, gates."""
    return UNIT_BYTES + group * (3 * TILE_BYTES + 2 * SIZE * 4)


def resident(group: int) -> int:
    """Blocks of `prepare` that a processor of 227 KB holds."""
    return 2 if 2 * (prepare_bytes(group) + 1024) <= 227 * 1024 else 1


def walk_bytes() -> int:
    """Shared memory of a block of `walk`: chunks, their factors, outputs, barriers."""
    return STAGES * (UNIT_BYTES + 3 * TILE_BYTES + FACTOR_BYTES + 16) + TILE_BYTES


def products() -> str:
    """Device functions that multiply 64 rows of 16 numbers in registers by what lies in shared memory (b: its descriptor).

    add_rows(d, a, b, add): by 64 or 128 rows, added if so said. add_columns(d, a, b): by 16 rows of 128 numbers, added.
    """
    rows = "".join(
        _product("add_rows", columns // 2, f"m64n{columns}k16", ", int add", ', "r"(add)', "{add}", 0) for columns in (64, 128)
    )
    return rows + _product("add_columns", 64, "m64n128k16", "", "", "1", 1)


def _product(name: str, numbers: int, shape: str, parameter: str, given: str, add: str, transposed: int) -> str:
    """numbers: of the accumulator."""
    sums, a = ("{" + ", ".join(f"%{i}" for i in found) + "}" for found in (range(numbers), range(numbers, numbers + 4)))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(numbers))
    add = add.replace("{add}", f"%{numbers + 5}")
    return (
        f"__device__ __forceinline__ void {name}(float (&d)[{numbers}], const u32 (&a)[4], u64 b{parameter}) {{\n"
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, {add}, 0; wgmma.mma_async.sync.aligned.{shape}.f32.f16.f16 "\n'
        f'               "{sums}, {a}, %{numbers + 4}, p, 1, 1, {transposed}; }}"\n'
        f'               : {outputs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b){given});\n}}\n'
    )


def own_source(name: str) -> str:
    """A kernel without the primitives."""
    return "".join((Path(__file__).parent / file).read_text() for file in ("prefill.cuh", f"{name}.cu"))


@cache
def source(name: str) -> str:
    primitives = with_primitives(gated_delta_verify.PRIMITIVES, Path(__file__).parent / "prefill_primitives.cuh")
    return primitives + products() + own_source(name)


def _kernel(name: str, chosen: dict[str, int], shared_bytes: int, device: torch.device) -> CudaFunction:
    return compiled(source(name), name, chosen, 256, shared_bytes, device, wgmma=True)


def convolved_rule(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, rows: PackedRows
) -> Tensor:
    """What the norm is given, [T, HV, DV] in fp16; of rows of one token it is undefined, and their tails and states stay."""
    heads, key_heads, device = states.shape[1], _key_heads(tails, states), qkvz.device
    out = torch.empty(len(qkvz), heads, HEAD_DIM, dtype=torch.float16, device=device)
    table = rows.pieces(SIZE, 2)
    if table is None:
        return out
    chosen = macros(qkvz.dtype, tails, states)
    units = torch.empty(len(table.pieces) * key_heads * UNIT_BYTES, dtype=torch.uint8, device=device)
    records = torch.empty(len(table.pieces) * heads * HEAD_BYTES, dtype=torch.uint8, device=device)
    _kernel("prepare", chosen, prepare_bytes(heads // key_heads), device)(
        (key_heads, len(table.pieces), 1), qkvz, ab, weights.conv, weights.a_log, weights.dt_bias, tails, slots, table.pieces,
        units, records, qkvz.stride(0), ab.stride(0),
    )
    _kernel("walk", chosen, walk_bytes(), device)(
        (2 * heads, len(table.rows), 1), units, records, out, states, slots, table.rows
    )
    return out
