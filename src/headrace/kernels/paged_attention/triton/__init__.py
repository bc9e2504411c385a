"""Paged attention on NVIDIA cards: rows with few queries by `split`, prefill chunks by `chunk`, in one batch both.

What `cuda` suits runs in CUDA C++ instead, over the same items and tiles: it is faster wherever that was measured. Rows that
are split are read from the device alone: a captured step may be replayed with other lengths, tables and counts.

Workspace of split rows: partial sums, W x query heads x most tokens of a row x (head_dim + 2) x 4 bytes, where W is the rows
plus the blocks that the card's processors hold over key heads x blocks of queries. On 132 processors with 24 query heads of 256
over 4 key heads: 0.8 MB for one row of one token, 3.2 MB for 64, 25.8 MB for 64 of 8. Chunks have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.card import card
from headrace.kernels.paged_attention import cuda, forms
from headrace.kernels.paged_attention.reference import plan_rows as plan_rows
from headrace.kernels.paged_attention.rows import Inputs, PagedRows
from headrace.kernels.paged_attention.triton.attend import E4M3, FLOATS, INT8
from headrace.kernels.paged_attention.triton.chunk import attend_chunk
from headrace.kernels.paged_attention.triton.split import attend_item, combine, plan_items
from headrace.kernels.variant import TARGETS, Tuning, Variant

SPLIT_QUERIES = 32
"""Rows of up to so many query tokens have their keys split; longer rows are chunks."""
STEP_TOKENS = 64
"""Items are whole steps of so many keys."""
NO_WINDOW = 1 << 30
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Queries and keys of a tile, warps, stages of the load pipeline, and blocks that a processor holds at once."""

    queries: int
    keys: int
    warps: int
    stages: int
    resident: int = 1


def split_tiles(capability: int, dim: int, operands: Operands, queries: int) -> Tiles:
    """queries: most query vectors of a row for one key head. dim: a power of two.

    Measured on sm_90; the others' tiles let two blocks share a processor's 100 KB. No tile spills registers.
    """
    rows = min(64, max(16, _power_of_two(queries)))
    if operands.itemsize > 2:
        return Tiles(16, max(16, min(64, 4096 // dim)), 8, 1, 2)
    keys, warps, stages, resident = 32, 4, 2, 2
    if rows == 16 and capability == 90:
        keys, stages, resident = (64, 1, 3) if operands.itemsize == 1 else (64, 2, 2)
    elif rows == 16:
        stages = 3
    elif rows == 64 and operands.itemsize == 1 and not (capability == 90 and operands.are_bf16):
        warps, stages = 8, 1
    return Tiles(rows, min(128, keys * 256 // dim), warps, stages, resident)


def chunk_tiles(capability: int, dim: int, operands: Operands) -> Tiles:
    """dim: a power of two."""
    if operands.itemsize > 2:
        return Tiles(16, max(16, min(64, 4096 // dim)), 8, 1)
    if operands.itemsize == 2 and capability == 90:
        return Tiles(128, min(128, 64 * 256 // dim), 8, 3)
    if operands.itemsize == 2:
        return Tiles(64, 32 if dim >= 128 else 64, 8 if capability >= 100 and dim == 256 else 4, 2)
    if capability == 90:
        return Tiles(128, 32, 8, 2) if operands.are_bf16 else Tiles(32, 64, 4, 1)
    return Tiles(64, 64, 8, 1)


def bytes_here(capability: int, tiles: Tiles) -> bool:
    """Whether bytes are decoded as mma.sync needs it (see `attend.decode`): wgmma takes operands from shared memory."""
    return capability != 90 or tiles.queries < 64


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Operands:
    """What tiles depend on: bytes of a pool's element, and whether queries are bf16 (int8 then becomes bf16 for wgmma)."""

    itemsize: int
    are_bf16: bool


@dataclass(frozen=True, slots=True)
class Items:
    """The split rows' items on the device, see `split.plan_items`. size: W."""

    items: Tensor
    row_items: Tensor
    arrived: Tensor
    size: int


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scale: float, key_scales: Tensor | None = None,
    value_scales: Tensor | None = None, gate: Tensor | None = None,
) -> Tensor:
    q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
    _attend((q, keys, values, key_scales, value_scales), gate, rows, scale, out)
    if rows.others is not None:
        _attend((q, keys, values, key_scales, value_scales), gate, rows.others, scale, out)
    return out


def _attend(inputs: Inputs, gate: Tensor | None, rows: PagedRows, scale: float, out: Tensor) -> None:
    """Writes the rows' tokens of out."""
    call, by_cuda = _Call(*inputs, gate, rows, scale, out), _by_cuda(inputs, gate, rows, scale, out)
    if _most_tokens(rows):
        if by_cuda:
            _split_by_cuda(by_cuda, rows)
        else:
            call.split()
    if not rows.bounded and any(tokens > SPLIT_QUERIES for tokens in rows.row_tokens):
        if rows.first:
            raise ValueError(f"rows of more than {SPLIT_QUERIES} tokens cannot begin at key {rows.first}")
        if by_cuda and call.card.capability == 90:
            _chunks_on_hopper(by_cuda, rows)
        else:
            call.chunks()


def _by_cuda(
    inputs: Inputs, gate: Tensor | None, rows: PagedRows, scale: float, out: Tensor
) -> cuda.Attention | None:
    if not cuda.suits(inputs, gate, rows.page_tokens):
        return None
    return cuda.Attention(inputs, gate, out, rows.page_table, scale * LOG2_E, rows.window or NO_WINDOW, rows.page_tokens)


def _split_by_cuda(call: cuda.Attention, rows: PagedRows) -> None:
    facts, tokens = card(call.out.device), _most_tokens(rows)
    most = tokens * call.group
    many = forms.split_form(most, len(rows.lengths) * call.kv, call.vectors, facts)
    if isinstance(many, forms.FewQueries):
        plan = _planned(rows, tokens, facts.processors * many.resident // call.kv, call.kv)
        return call.few(many, plan.items, plan.arrived, most)
    blocks = call.kv * -(-most // many.queries)
    plan = _planned(rows, tokens, facts.processors * many.resident // blocks, call.kv)
    given = plan.items, plan.row_items, rows.row_offsets, most
    if isinstance(many, forms.HopperQueries):
        call.many_on_hopper(many, *given)
    elif isinstance(many, forms.PackedQueries):
        call.packed(many, *given)
    else:
        call.many(many, *given)


def forms_of(
    inputs: Inputs, gate: Tensor | None, page_tokens: int, rows: int, longest: int
) -> tuple[Hashable, ...]:
    """As the public function: of the items' plan, and of what attends to them."""
    (q, keys), planned = inputs[:2], _power_of_two(rows)
    facts, kv, dim = card(q.device), keys.shape[2], q.shape[2]
    queries = min(longest, SPLIT_QUERIES) * (q.shape[1] // kv)
    if cuda.suits(inputs, gate, page_tokens):
        return planned, forms.split_form(queries, rows * kv, forms.Vectors(dim, keys.dtype.itemsize), facts)
    operands = operands_of(q.dtype, keys.dtype)
    return planned, split_tiles(facts.capability, max(16, _power_of_two(dim)), operands, queries)


def _chunks_on_hopper(call: cuda.Attention, rows: PagedRows) -> None:
    form = forms.hopper_chunk_form(call.vectors)
    tiles = _chunk_tiles(rows, call.group, form.queries, call.out.device)
    call.chunks_on_hopper(form, rows.lengths, rows.row_offsets, tiles)


def _chunk_tiles(rows: PagedRows, group: int, queries: int, device: torch.device) -> Tensor:
    return rows.once((queries, group), lambda: _chunk_list(rows.row_tokens, group, queries, device))


def _most_tokens(rows: PagedRows) -> int:
    """Of rows that are split; 0 if none is."""
    return max((tokens for tokens in rows.row_tokens if rows.bounded or tokens <= SPLIT_QUERIES), default=0)


class _Call:
    """The arguments that both kernels share."""

    def __init__(
        self, q: Tensor, keys: Tensor, values: Tensor, key_scales: Tensor | None, value_scales: Tensor | None,
        gate: Tensor | None, rows: PagedRows, scale: float, out: Tensor,
    ) -> None:
        self.rows, self.out, self.card = rows, out, card(q.device)
        self.kv, self.dim = keys.shape[2], q.shape[2]
        self.types, self.operands = (q.dtype, keys.dtype), operands_of(q.dtype, keys.dtype)
        self.group = q.shape[1] // self.kv
        kind = pool_kind(keys.dtype)
        if kind == E4M3:
            keys, values = keys.view(torch.uint8), values.view(torch.uint8)
        self.inputs = (q, keys, values, key_scales, value_scales)
        self.gating = (gate, 0 if gate is None else gate.stride(0), 0 if gate is None else gate.stride(1))
        self.scalars = (scale * LOG2_E, rows.window or NO_WINDOW, rows.page_table.stride(0), *self.gating[1:])
        self.shape = {"KV": self.kv, "GROUP": self.group, "D": self.dim, "BLOCK_D": max(16, _power_of_two(self.dim))}
        gain = 1.0 if kind == FLOATS else 256.0
        self.kind = {"PAGE": rows.page_tokens, "KIND": kind, "GAIN": gain}
        self.end = {"UNIT": 1.0 / gain if kind == INT8 else 1.0, "GATED": gate is not None}
        self.windowed = {"WINDOWED": rows.window is not None}

    def split(self) -> None:
        rows, most = self.rows, _most_tokens(self.rows)
        queries = most * self.group
        tiles = split_tiles(self.card.capability, self.shape["BLOCK_D"], self.operands, queries)
        blocks = self.kv * triton.cdiv(queries, tiles.queries)
        plan = _planned(rows, most, self.card.processors * tiles.resident // blocks, self.kv)
        device, gate = self.out.device, self.gating[0]
        sums = torch.empty(plan.size, self.kv, queries, self.dim, dtype=torch.float32, device=device)
        tops, totals = torch.empty(2, plan.size, self.kv, queries, dtype=torch.float32, device=device)
        attend_item[(self.kv, plan.size, triton.cdiv(queries, tiles.queries))](
            *self.inputs, gate, self.out, sums, tops, totals, rows.page_table, plan.items,
            *self.scalars, queries, **self.shape, **self.kind, **self.end, **self._form(tiles), **self.windowed,
            num_warps=tiles.warps, num_stages=tiles.stages,
        )
        combine[(len(rows.lengths) * most, self.kv * self.group)](
            sums, tops, totals, gate, self.out, rows.row_offsets, plan.row_items, *self.gating[1:], most,
            **self.shape, BLOCK_S=16, **self.end, num_warps=4,
        )

    def chunks(self) -> None:
        rows = self.rows
        sizes = chunk_tiles(self.card.capability, self.shape["BLOCK_D"], self.operands)
        tiles = _chunk_tiles(rows, self.group, sizes.queries, self.out.device)
        attend_chunk[(len(tiles), self.kv)](
            *self.inputs, self.gating[0], self.out, rows.page_table, rows.lengths, rows.row_offsets, tiles, *self.scalars,
            **self.shape, **self.kind, **self.end, **self._form(sizes), **self.windowed,
            num_warps=sizes.warps, num_stages=sizes.stages,
        )

    def _form(self, tiles: Tiles) -> dict[str, object]:
        return _form(self.card.capability, tiles, *self.types)


def _form(capability: int, tiles: Tiles, queries: torch.dtype, pool: torch.dtype) -> dict[str, object]:
    """The constants that follow from the tiles."""
    here = bytes_here(capability, tiles)
    return {"BLOCK_M": tiles.queries, "BLOCK_N": tiles.keys, "BYTES_HERE": here, "DOT": products_type(queries, pool, here)}


def pool_kind(dtype: torch.dtype) -> int:
    if dtype == torch.int8:
        return int(INT8.value)
    return int((E4M3 if dtype in (torch.float8_e4m3fn, torch.uint8) else FLOATS).value)


def operands_of(queries: torch.dtype, pool: torch.dtype) -> Operands:
    return Operands(pool.itemsize, pool == torch.int8 and queries == torch.bfloat16)


def products_type(queries: torch.dtype, pool: torch.dtype, here: bool) -> tl.dtype:
    """What the matrix products' operands are: exact for what pools hold. here: as `bytes_here`."""
    if queries == torch.float32 or pool == torch.float32:
        return tl.float32
    wgmma_int8 = not here and operands_of(queries, pool).are_bf16  # the conversion that Triton has in vectors
    return tl.bfloat16 if pool == torch.bfloat16 or wgmma_int8 else tl.float16


def _planned(rows: PagedRows, most_tokens: int, target: int, kv_heads: int) -> Items:
    target = max(1, target)
    return rows.once((target, most_tokens), lambda: _plan(rows, most_tokens, target, kv_heads))


def _plan(rows: PagedRows, most_tokens: int, target: int, kv_heads: int) -> Items:
    count, device = len(rows.lengths), rows.lengths.device
    size = count + target
    items = torch.empty(size, 8, dtype=torch.int32, device=device)
    row_items = torch.empty(count, 2, dtype=torch.int32, device=device)
    arrived = torch.empty(count, kv_heads, dtype=torch.int32, device=device)
    plan_items[(triton.cdiv(size, 32),)](
        rows.lengths, rows.row_offsets, items, row_items, arrived, count, size, rows.window or NO_WINDOW, rows.first,
        most_tokens, target, KV=kv_heads, STEP=STEP_TOKENS, LEAST=1, BLOCK_R=_power_of_two(count), BLOCK_W=32, num_warps=4,
    )
    return Items(items, row_items, arrived, size)


def _chunk_list(row_tokens: Sequence[int], group: int, queries: int, device: torch.device) -> Tensor:
    """(row, tile) of every tile, each row's last ones, which see most keys, first."""
    tiles = [
        (row, tile)
        for row, tokens in enumerate(row_tokens) if tokens > SPLIT_QUERIES
        for tile in reversed(range(-(-tokens * group // queries)))
    ]
    listed = torch.tensor(tiles, dtype=torch.int32)
    return listed.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else listed


_TYPES = {"bf16": ("*bf16", torch.bfloat16), "fp16": ("*fp16", torch.float16), "fp32": ("*fp32", torch.float32),
          "int8": ("*i8", torch.int8), "fp8": ("*u8", torch.float8_e4m3fn)}
_KINDS = {"int8": (int(INT8.value), 256.0, 1 / 256), "fp8": (int(E4M3.value), 256.0, 1.0)}


def _attend_variant(
    name: str, kernel: Any, tiles: Callable[[int], Tiles], compute: str, kv: str, kv_heads: int, group: int, dim: int,
    signature: Mapping[str, str], *, gated: bool,
) -> Variant:
    pool = _TYPES[kv][0]
    kind, gain, unit = _KINDS.get(kv, (int(FLOATS.value), 1.0, 1.0))
    scales: Mapping[str, str] = {"key_scales": "*fp16", "value_scales": "*fp16"} if kv in _KINDS else {}
    gate: Mapping[str, str] = {"gate": f"*{compute}"} if gated else {}
    absent = {"key_scales", "value_scales", "gate"} - scales.keys() - gate.keys()
    sizes = [tiles(target) for target in TARGETS]
    return Variant(
        name, kernel,
        {"q": f"*{compute}", "keys": pool, "values": pool, "out": f"*{compute}", "page_table": "*i64", "scale": "fp32",
         "window": "i32", "table_stride": "i32", "gate_token_stride": "i32", "gate_head_stride": "i32", **signature, **scales,
         **gate},
        {"KV": kv_heads, "GROUP": group, "D": dim, "BLOCK_D": max(16, _power_of_two(dim)), "PAGE": 16, "KIND": kind,
         "GAIN": gain, "UNIT": unit, "GATED": gated, "WINDOWED": False, **dict.fromkeys(absent)},
        tuned={target: Tuning(_form(target, size, _TYPES[compute][1], _TYPES[kv][1]), size.warps, size.stages)
               for target, size in zip(TARGETS, sizes, strict=True)},
    )


def _variants(
    compute: str, kv: str, kv_heads: int, group: int, dim: int, tokens: tuple[int, ...], *, gated: bool
) -> list[Variant]:
    shape = (compute, kv, kv_heads, group, dim)
    operands, block = operands_of(_TYPES[compute][1], _TYPES[kv][1]), max(16, _power_of_two(dim))
    name = f"{compute}-{kv}-{group}x{dim}"
    split = {"partial": "*fp32", "tops": "*fp32", "totals": "*fp32", "items": "*i32", "most_queries": "i32"}
    chunk = {"lengths": "*i32", "row_offsets": "*i32", "tiles": "*i32"}
    made = []
    for count in tokens:
        tiles = partial(split_tiles, dim=block, operands=operands, queries=count * group)
        made.append(_attend_variant(f"split-{name}-{count}", attend_item, tiles, *shape, split, gated=gated))
    tiles = partial(chunk_tiles, dim=block, operands=operands)
    made.append(_attend_variant(f"chunk-{name}", attend_chunk, tiles, *shape, chunk, gated=gated))
    return made


def _combine_variant(compute: str, kv_heads: int, group: int, dim: int, unit: float, *, gated: bool) -> Variant:
    gate: Mapping[str, str] = {"gate": f"*{compute}"} if gated else {}
    return Variant(
        f"combine-{compute}-{group}x{dim}{'' if unit == 1 else '-int8'}", combine,
        {"partial": "*fp32", "tops": "*fp32", "totals": "*fp32", "out": f"*{compute}", "row_offsets": "*i32",
         "row_items": "*i32", "gate_token_stride": "i32", "gate_head_stride": "i32", "most_tokens": "i32", **gate},
        {"KV": kv_heads, "GROUP": group, "D": dim, "BLOCK_D": max(16, _power_of_two(dim)), "BLOCK_S": 16, "UNIT": unit,
         "GATED": gated, **({} if gated else {"gate": None})},
    )


VARIANTS = (
    *(made for kv in ("bf16", "int8") for made in _variants("bf16", kv, 4, 6, 256, (1, 4, 8), gated=True)),
    *_variants("bf16", "fp8", 4, 6, 256, (1, 8), gated=True),
    *(made for kv in ("fp16", "int8") for made in _variants("fp16", kv, 4, 6, 256, (1, 8), gated=True)),
    *(made for kv in ("bf16", "int8") for made in _variants("bf16", kv, 8, 4, 128, (1,), gated=False)),
    *(made for kv in ("bf16", "fp32") for made in _variants(kv, kv, 3, 3, 64, (1,), gated=False)),
    *(_combine_variant(compute, 4, 6, 256, unit, gated=True) for compute in ("bf16", "fp16") for unit in (1.0, 1 / 256)),
    _combine_variant("fp32", 3, 3, 64, 1.0, gated=False),
    Variant(
        "plan", plan_items,
        {"lengths": "*i32", "row_offsets": "*i32", "items": "*i32", "row_items": "*i32", "arrived": "*i32", "rows": "i32",
         "items_size": "i32", "window": "i32", "least": "i32", "most_tokens": "i32", "target": "i32"},
        {"KV": 4, "STEP": STEP_TOKENS, "LEAST": 1, "BLOCK_R": 64, "BLOCK_W": 32},
    ),
)
