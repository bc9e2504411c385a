"""A program for each token and half; and for each row a few that keep its last hidden state."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.joined_norms.rows import Before
from headrace.kernels.rms_norm import NormWeight
from headrace.kernels.tile import await_previous, let_next_start, store
from headrace.kernels.variant import Variant

_PIECE = 1024


@triton.jit(do_not_specialize=["rows"])
def _join(
    tokens, table, hidden, kept, row_offsets, slots, token_weight, hidden_weight, out, rows, columns, token_eps, token_offset,
    hidden_eps, hidden_offset, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BEHIND: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [T, 2]: the token's half, the hidden state's."""
    let_next_start(EARLY)
    at, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    alive = column < columns
    if half == 0:
        scale = tl.load(token_weight + column, mask=alive, other=0.0).to(tl.float32) + token_offset
        eps = token_eps
    else:
        scale = tl.load(hidden_weight + column, mask=alive, other=0.0).to(tl.float32) + hidden_offset
        eps = hidden_eps
    await_previous(EARLY)
    if half == 0:
        x = tl.load(table + tl.load(tokens + at) * columns + column, mask=alive, other=0.0).to(tl.float32)
    elif BEHIND:
        row = tl.arange(0, ROWS)
        first = tl.load(row_offsets + row, mask=row < rows, other=-1) == at
        begins = tl.max(first.to(tl.int32), 0) > 0
        slot = tl.sum(tl.where(first, tl.load(slots + row, mask=row < rows, other=0), 0), 0)
        mine = tl.load(kept + slot * columns + column, mask=alive & begins, other=0.0).to(tl.float32)
        x = mine + tl.load(hidden + (at - 1) * columns + column, mask=alive & (begins == 0), other=0.0).to(tl.float32)
    else:
        x = tl.load(hidden + at * columns + column, mask=alive, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / columns + eps)
    store(out + (2 * at + half) * columns + column, x * inverse * scale, alive)


@triton.jit(do_not_specialize=["tokens"])
def _keep(hidden, kept, row_offsets, slots, counts, tokens, columns, PIECE: tl.constexpr, EARLY: tl.constexpr):
    """Grid [R, pieces of a hidden state]."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(0)
    last = tl.load(row_offsets + row) + tl.load(counts + row) - 1
    last = tl.minimum(tl.maximum(last, 0), tokens - 1).to(tl.int64)
    column = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    x = tl.load(hidden + last * columns + column, mask=column < columns)
    tl.store(kept + tl.load(slots + row) * columns + column, x, mask=column < columns)


def joined_norms(
    tokens: Tensor, table: Tensor, hidden: Tensor, token_norm: NormWeight, hidden_norm: NormWeight, before: Before | None = None
) -> Tensor:
    total, columns = hidden.shape
    out = torch.empty(total, 2 * columns, dtype=hidden.dtype, device=hidden.device)
    rows = (None, None, None) if before is None else (before.kept, before.row_offsets, before.slots)
    count = 1 if before is None else len(before.slots)
    if total:
        _join[(total, 2)](
            tokens, table, hidden.contiguous(), *rows, token_norm.weight, hidden_norm.weight, out, count, columns,
            token_norm.eps, token_norm.offset, hidden_norm.eps, hidden_norm.offset,
            **_sizes(columns, count, behind=before is not None), **early(hidden.device),
        )
    return out


def keep_last(before: Before, counts: Tensor, hidden: Tensor) -> None:
    total, columns = hidden.shape
    _keep[(len(before.slots), triton.cdiv(columns, _PIECE))](
        hidden.contiguous(), before.kept, before.row_offsets, before.slots, counts, total, columns, _PIECE, num_warps=4,
        **early(hidden.device),
    )


def _sizes(columns: int, rows: int, *, behind: bool) -> dict[str, int]:
    block = max(16, triton.next_power_of_2(columns))
    return {"COLUMNS": block, "ROWS": triton.next_power_of_2(rows), "BEHIND": behind, "num_warps": min(8, max(1, block // 512))}


def _variant(compute: str, *, behind: bool) -> Variant:
    sizes = _sizes(5120, 64, behind=behind)
    warps = sizes.pop("num_warps")
    rows = {"kept": f"*{compute}", "row_offsets": "*i32", "slots": "*i64"} if behind else {}
    absent = {} if behind else dict.fromkeys(("kept", "row_offsets", "slots"))
    numbers = dict.fromkeys(("token_eps", "token_offset", "hidden_eps", "hidden_offset"), "fp32")
    return Variant(
        f"join-{compute}{'-behind' if behind else ''}", _join,
        {"tokens": "*i64", **dict.fromkeys(("table", "hidden", "out"), f"*{compute}"), **rows, "token_weight": "*fp32",
         "hidden_weight": "*fp32", "rows": "i32", "columns": "i32", **numbers},
        {**sizes, **absent}, num_warps=warps, early=True,
    )


VARIANTS = (
    *(_variant(compute, behind=behind) for compute in ("bf16", "fp16", "fp32") for behind in (True, False)),
    *(Variant(f"keep-{compute}", _keep,
              {"hidden": f"*{compute}", "kept": f"*{compute}", "row_offsets": "*i32", "slots": "*i64", "counts": "*i64",
               "tokens": "i32", "columns": "i32"}, {"PIECE": _PIECE}, early=True) for compute in ("bf16", "fp16", "fp32")),
)
