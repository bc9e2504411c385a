"""Attention on NVIDIA cards of compute capability 8.0 and later: CUDA C++ compiled by NVRTC.

Rows of few tokens, in the items of `triton.split`: up to 8 queries of a key head (tokens x query heads of it) one kernel reads
the keys at the memory's rate and also adds the items of a row; for more, blocks share tiles of keys, and a second kernel adds.
`prelude.cuh` says how operands lie. On Hopper the same, and longer rows in tiles of queries, by `hopper_queries.cu`.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import card
from headrace.kernels.cuda_function import Argument, CudaFunction, compiled, with_primitives
from headrace.kernels.paged_attention import forms, hopper
from headrace.kernels.paged_attention.forms import STEP_KEYS, FewQueries, HopperQueries, ManyQueries, PackedQueries, Vectors
from headrace.kernels.paged_attention.rows import Inputs
from headrace.kernels.tensor_map import boxes_of_rows

DIMS = (128, 256)
KINDS = {torch.float16: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}
WITH_WGMMA = "hopper_queries"
_ADDED_QUERIES = 4
_ADDING_THREADS = 256


def suits(inputs: Inputs, gate: Tensor | None, page_tokens: int) -> bool:
    q, keys = inputs[:2]
    types = q.dtype in (torch.float16, torch.bfloat16) and keys.dtype in KINDS
    shape = q.shape[2] in DIMS and page_tokens % STEP_KEYS == 0
    lie = all(x is None or x.is_contiguous() and not x.data_ptr() % 16 for x in inputs)
    gates = gate is None or gate.stride(2) == 1 and not (gate.data_ptr() % 8 or gate.stride(0) % 4 or gate.stride(1) % 4)
    return types and shape and lie and gates and q.is_cuda and card(q.device).capability >= 80 and nvrtc.available()


@cache
def source(name: str, text: str = "") -> str:
    """The preludes, the text and one kernel."""
    directory = Path(__file__).parent
    return with_primitives(directory / "prelude.cuh") + text + (directory / f"{name}.cu").read_text()


def shape_macros(
    queries: torch.dtype, pool: torch.dtype, dim: int, kv_heads: int, group: int, page_tokens: int
) -> dict[str, int]:
    """The macros that tell every kernel its types and shape."""
    bf16, kind = int(queries == torch.bfloat16), KINDS[pool]
    return {"BF16": bf16, "KIND": kind, "D": dim, "KV": kv_heads, "GROUP": group, "PAGE": page_tokens}


def few_macros(form: FewQueries) -> dict[str, int]:
    return {"WARPS": form.warps, "SLOTS": form.slots, "RESIDENT": form.resident}


def many_macros(form: ManyQueries) -> dict[str, int]:
    return {"NT": form.eights, "KEYS": form.keys, "SPLIT": form.split, "SLOTS": form.slots, "RESIDENT": form.resident}


def packed_macros(form: PackedQueries) -> dict[str, int]:
    return {"TILES": form.tiles, "PARTS": form.parts, "SLOTS": form.slots}


def hopper_macros(form: HopperQueries, vectors: Vectors) -> dict[str, int]:
    return {
        "WARPGROUPS": form.warpgroups, "KEYS": form.keys, "RESIDENT": form.resident, "ITEMS": int(form.items),
        "COLUMNS": min(vectors.dim, form.largest_columns),
    }


def hopper_text(form: HopperQueries, vectors: Vectors, pool: torch.dtype) -> str:
    return hopper.products(form.keys, min(vectors.dim, form.largest_columns), pool == torch.bfloat16)


def function(
    name: str, macros: dict[str, int], threads: int, shared_bytes: int, device: torch.device, text: str = ""
) -> CudaFunction:
    """The kernel on the device, compiled for its card when it is first launched. text: as in `source`."""
    return compiled(source(name, text), name, macros, threads, shared_bytes, device, wgmma=name == WITH_WGMMA)


class Attention:
    """One call. scale: of logits to base 2."""

    def __init__(
        self, inputs: Inputs, gate: Tensor | None, out: Tensor, page_table: Tensor, scale: float, window: int, page_tokens: int
    ) -> None:
        q, keys = inputs[:2]
        self.inputs, self.gate, self.out, self.table = inputs, gate, out, page_table
        self.vectors, self.kv = Vectors(q.shape[2], keys.dtype.itemsize), keys.shape[2]
        self.group = q.shape[1] // self.kv
        self.macros = shape_macros(q.dtype, keys.dtype, q.shape[2], self.kv, self.group, page_tokens)
        strides = (0, 0) if gate is None else gate.stride()[:2]
        self.gate_strides: tuple[Argument, ...] = tuple(ctypes.c_longlong(stride) for stride in strides)
        table_stride = ctypes.c_longlong(page_table.stride(0))
        self.scalars: tuple[Argument, ...] = (ctypes.c_float(scale), window, table_stride, *self.gate_strides)

    def sums(self, items: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Room for what items of split rows leave: sums, largest logits, totals."""
        new = partial(torch.empty, dtype=torch.float32, device=self.out.device)
        return new(items, self.kv, most, self.vectors.dim), new(items, self.kv, most), new(items, self.kv, most)

    def few(self, form: FewQueries, items: Tensor, arrived: Tensor, most: int) -> None:
        """most: queries of a row for one key head. arrived: zeros [rows, key heads] int32, which they are again afterwards."""
        macros, sums = self.macros | few_macros(form), self.sums(len(items), most)
        kernel = function("few_queries", macros, 32 * form.warps, form.shared_bytes(self.vectors), self.out.device)
        kernel((self.kv, len(items), 1), *self.inputs, self.gate, self.out, *sums, self.table, items, arrived,
               *self.scalars, most)

    def many(self, form: ManyQueries, items: Tensor, row_items: Tensor, row_offsets: Tensor, most: int) -> None:
        """most: queries of a row for one key head."""
        macros, sums = self.macros | many_macros(form), self.sums(len(items), most)
        kernel = function("many_queries", macros, 32 * forms.MANY_WARPS, form.shared_bytes(self.vectors), self.out.device)
        grid = self.kv, len(items), -(-most // form.queries)
        kernel(grid, *self.inputs, self.gate, self.out, *sums, self.table, items, *self.scalars, most)
        self._add(sums, row_items, row_offsets, most)

    def packed(self, form: PackedQueries, items: Tensor, row_items: Tensor, row_offsets: Tensor, most: int) -> None:
        """As `many`, for pools of 16 bits."""
        macros, sums = self.macros | packed_macros(form), self.sums(len(items), most)
        kernel = function("packed_queries", macros, form.threads, form.shared_bytes(self.vectors), self.out.device)
        grid = self.kv * -(-most // form.queries), len(items), 1
        kernel(grid, *self.inputs[:3], self.gate, self.out, *sums, self.table, items, *self.scalars, most)
        self._add(sums, row_items, row_offsets, most)

    def many_on_hopper(self, form: HopperQueries, items: Tensor, row_items: Tensor, row_offsets: Tensor, most: int) -> None:
        sums, grid = self.sums(len(items), most), (self.kv, len(items), -(-most // form.queries))
        kernel = self._hopper(form)
        kernel(grid, *self._hopper_inputs(), self.gate, self.out, *sums, self.table, items, *self.scalars, most)
        self._add(sums, row_items, row_offsets, most)

    def chunks_on_hopper(self, form: HopperQueries, lengths: Tensor, row_offsets: Tensor, tiles: Tensor) -> None:
        """tiles: (row, which form.queries of its tokens x query heads) of each."""
        kernel, grid, rows = self._hopper(form), (self.kv, len(tiles), 1), (self.table, lengths, row_offsets, tiles)
        kernel(grid, *self._hopper_inputs(), self.gate, self.out, *rows, *self.scalars, 0)

    def _add(self, sums: tuple[Tensor, Tensor, Tensor], row_items: Tensor, row_offsets: Tensor, most: int) -> None:
        add = function("add_items", self.macros, _ADDING_THREADS, 0, self.out.device)
        grid = self.kv, len(row_items), -(-most // _ADDED_QUERIES)
        add(grid, *sums, self.gate, self.out, row_offsets, row_items, *self.gate_strides, most)

    def _hopper(self, form: HopperQueries) -> CudaFunction:
        macros, text = self.macros | hopper_macros(form, self.vectors), hopper_text(form, self.vectors, self.inputs[1].dtype)
        return function("hopper_queries", macros, form.threads, form.shared_bytes(self.vectors), self.out.device, text)

    def _hopper_inputs(self) -> tuple[Argument, ...]:
        """Pools of 16 bits are read by the copy engine."""
        q, keys, values = self.inputs[:3]
        if self.vectors.itemsize == 1:
            return self.inputs
        return q, *(boxes_of_rows(pool.view(-1, self.kv * self.vectors.dim), STEP_KEYS) for pool in (keys, values))
