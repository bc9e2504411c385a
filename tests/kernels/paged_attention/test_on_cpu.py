"""The CUDA kernels without a GPU: run on a CPU, they agree with the definition."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.test_gpu import agree
from tests.support import cuda_on_cpu
from tests.support.triton_kernels import widened
from torch import Tensor

from headrace.kernels.paged_attention import cases, cuda, forms, reference
from headrace.kernels.paged_attention.cases import Case
from headrace.kernels.paged_attention.forms import FewQueries, HopperQueries, ManyQueries, PackedQueries, Vectors

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
SUPPORT = Path(cuda_on_cpu.__file__).parent
NO_WINDOW = 1 << 30
FEW = FewQueries(8, 3, 1)  # of 256 threads, as the harness has


def on_cpu(source: str, *headers: str) -> str:
    """Without what is assembly, or is there already. headers: of tests/support, besides attention_on_cpu.hpp."""
    functions = re.compile(
        r"^(?:template <[^>]*> )?__device__ __forceinline__ [^{;]*\{(?:.*\}$|[^\n]*\n(?:.*\n)*?\}$)", re.MULTILINE
    )
    kept = functions.sub(lambda found: "" if "asm" in found[0] else found[0], source)
    kept = re.sub(r"extern __shared__ .*char (\w+)\[\];", r"char* const \1 = (char*)memory;", kept)
    kept = re.sub(r"^typedef unsigned (int u32|short u16);\n", "", kept, flags=re.MULTILINE)
    return "".join(f'#include "{SUPPORT / header}"\n' for header in ("attention_on_cpu.hpp", *headers)) + kept


def hopper_on_cpu(source: str, **macros: bool) -> str:
    """As `on_cpu`, and for these macros only: the harness reads the kernel's parameters from its text."""
    choice = re.compile(r"^#if (EIGHT_BITS|ITEMS)\n(.*?)(?:^#else\n(.*?))?^#endif\n", re.MULTILINE | re.DOTALL)
    kept = choice.sub(lambda found: (found[2] if macros[found[1]] else found[3]) or "", on_cpu(source, "hopper_on_cpu.hpp"))
    return kept.replace("struct __align__(64) Boxes", "struct Boxes")  # which is passed by value


class Matrix(ctypes.Structure):
    """In a tensor map's place: a pool as rows of tokens."""

    _fields_ = [("address", ctypes.c_void_p), ("row_bytes", ctypes.c_longlong), ("rest", ctypes.c_char * 112)]


def items_of(case: Case, part_keys: int) -> tuple[Tensor, Tensor]:
    """As `triton.split.plan_items`, with items of so many keys."""
    items, row_items, first_token = [], [], 0
    for row, (tokens, length) in enumerate(case.rows):
        begin = max(case.first, length - tokens + 1 - (case.window or NO_WINDOW))
        edges = [*range(begin, length, part_keys), length]
        first, parts = len(items), len(edges) - 1
        row_items.append((first, parts))
        for key, end in itertools.pairwise(edges):
            items.append((row, key, end, parts, first_token, tokens, length, first))
        first_token += tokens
    items.append((-1, *[0] * 7))
    return torch.tensor(items, dtype=torch.int32), torch.tensor(row_items, dtype=torch.int32)


class Call:
    """A case's arguments, as the kernels take them."""

    def __init__(self, case: Case, part_keys: int) -> None:
        given = cases.inputs(case, torch.float16)
        self.given, self.case = given, case
        self.items, self.row_items = items_of(case, part_keys)
        q, keys, gate = given["q"], given["keys"], given.get("gate")
        self.kv, self.group = case.kv_heads, case.heads // case.kv_heads
        self.most = max(tokens for tokens, _ in case.rows) * self.group
        self.vectors = Vectors(case.dim, keys.dtype.itemsize)
        self.macros = cuda.shape_macros(q.dtype, keys.dtype, case.dim, self.kv, self.group, case.page_tokens)
        self.inputs = (q, keys, given["values"], given.get("key_scales"), given.get("value_scales"))
        self.gate, self.out = gate, torch.full_like(q, float("nan"))
        shape = (len(self.items), self.kv, self.most)
        self.sums = tuple(torch.full((*shape, *more), float("nan")) for more in ((case.dim,), (), ()))
        self.strides = tuple(map(ctypes.c_longlong, gate.stride()[:2] if gate is not None else (0, 0)))
        self.offsets = torch.tensor([0, *itertools.accumulate(tokens for tokens, _ in case.rows)], dtype=torch.int32)
        table = given["page_table"]
        self.scalars = (ctypes.c_float(cases.SCALE / math.log(2)), case.window or NO_WINDOW, ctypes.c_longlong(table.stride(0)),
                        *self.strides, self.most)

    def run(self, name: str, macros: dict[str, int], depth: int, folder: Path, *arguments: Any) -> None:
        built = self.macros | macros | {"DEPTH": depth}
        run = cuda_on_cpu.compiled(on_cpu(cuda.source(name)), name, built, folder)
        rows = len(self.row_items) if name == "add_items" else len(self.items)
        run(self.kv, rows, *arguments)

    def few(self, folder: Path) -> None:
        arrived = torch.zeros(len(self.case.rows), self.kv, dtype=torch.int32)
        self.run("few_queries", cuda.few_macros(FEW), 1, folder, *self.inputs, self.gate, self.out, *self.sums,
                 self.given["page_table"], self.items, arrived, *self.scalars)
        assert not arrived.any()

    def many(self, form: ManyQueries, folder: Path) -> None:
        depth = -(-self.most // form.queries)
        self.run("many_queries", cuda.many_macros(form), depth, folder, *self.inputs, self.gate, self.out, *self.sums,
                 self.given["page_table"], self.items, *self.scalars)
        self.add(folder)

    def packed(self, form: PackedQueries, folder: Path) -> None:
        blocks = -(-self.most // form.queries)
        macros = self.macros | cuda.packed_macros(form) | {"BLOCK_THREADS": form.threads, "DEPTH": 1}
        run = cuda_on_cpu.compiled(on_cpu(cuda.source("packed_queries")), "packed_queries", macros, folder)
        run(self.kv * blocks, len(self.items), *self.inputs[:3], self.gate, self.out, *self.sums, self.given["page_table"],
            self.items, *self.scalars)
        self.add(folder)

    def hopper(self, form: HopperQueries, folder: Path) -> None:
        eight_bits, tokens = self.vectors.itemsize == 1, [tokens for tokens, _ in self.case.rows]
        source = hopper_on_cpu(cuda.source("hopper_queries"), EIGHT_BITS=eight_bits, ITEMS=form.items)
        q, keys, values, *scales = self.inputs
        row_bytes = self.kv * self.vectors.bytes
        pools = (keys, values, *scales) if eight_bits else (Matrix(pool.data_ptr(), row_bytes) for pool in (keys, values))
        table, depth = self.given["page_table"], -(-self.most // form.queries) if form.items else 1
        lengths = torch.tensor([length for _, length in self.case.rows], dtype=torch.int32)
        tiles = [(row, tile) for row, n in enumerate(tokens) for tile in range(-(-n * self.group // form.queries))]
        by_tile = (table, lengths, self.offsets, torch.tensor(tiles, dtype=torch.int32))
        macros = self.macros | cuda.hopper_macros(form, self.vectors) | {"DEPTH": depth}
        run = cuda_on_cpu.compiled(source, "hopper_queries", macros, folder)
        rows = (*self.sums, table, self.items) if form.items else by_tile
        run(self.kv, len(self.items) if form.items else len(tiles), q, *pools, self.gate, self.out, *rows, *self.scalars)
        if form.items:
            self.add(folder)

    def add(self, folder: Path) -> None:
        self.run("add_items", {}, -(-self.most // 4), folder, *self.sums, self.gate, self.out, self.offsets, self.row_items,
                 *self.strides, self.most)

    def agrees(self) -> None:
        agree((self.out,), cases.run(reference, widened(self.given)), torch.float16)


DECODE = Case("decode", ((1, 1), (1, 150), (1, 33), (1, 64)), 6, 1, 16, dim=128, gated=True)
VERIFY = Case("verify", ((8, 150), (3, 40), (1, 65), (2, 2)), 6, 1, 16, dim=128, gated=True)
KINDS = {
    "fp16": {}, "int8": {"kv": torch.int8}, "fp8": {"kv": torch.float8_e4m3fn}, "256": {"dim": 256},
    "int8-256": {"dim": 256, "kv": torch.int8}, "window": {"window": 45}, "int8-window": {"window": 61, "kv": torch.int8},
    "three-heads": {"heads": 9, "kv_heads": 3, "page_tokens": 32, "kv": torch.int8, "gated": False},
}


@pytest.mark.parametrize("part_keys", [64, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_few_queries(kind: str, part_keys: int, tmp_path: Path) -> None:
    call = Call(replace(DECODE, **KINDS[kind]), part_keys)
    call.few(tmp_path)
    call.agrees()


@pytest.mark.parametrize("part_keys", [64, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_many_queries(kind: str, part_keys: int, tmp_path: Path) -> None:
    call = Call(replace(VERIFY, **KINDS[kind]), part_keys)
    form = forms.many_queries_form(call.most, call.vectors, forms.Card(86, 82, 101_376))
    call.many(form, tmp_path)
    call.agrees()


SIXTEEN_BITS = [kind for kind, changes in KINDS.items() if "kv" not in changes]


@pytest.mark.parametrize("part_keys", [64, 1 << 20])
@pytest.mark.parametrize("kind", SIXTEEN_BITS)
@pytest.mark.parametrize("tokens", [8, 13])
def test_packed_queries(kind: str, tokens: int, part_keys: int, tmp_path: Path) -> None:
    call = Call(replace(VERIFY, **KINDS[kind], rows=((tokens, 150), (3, 40), (1, 65), (2, 2))), part_keys)
    call.packed(forms.packed_queries_form(call.most, call.vectors, forms.Card(86, 82, 101_376)), tmp_path)
    call.agrees()


@pytest.mark.parametrize("part_keys", [64, 1 << 20])
@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_items_on_hopper(kind: str, part_keys: int, tmp_path: Path) -> None:
    case = replace(VERIFY, **KINDS[kind], rows=((20, 150), (3, 40), (2, 2)))
    call = Call(case, part_keys)
    call.hopper(forms.hopper_items_form(call.vectors), tmp_path)
    call.agrees()


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_on_hopper(kind: str, tmp_path: Path) -> None:
    """With as many threads as the harness has: one warpgroup that multiplies."""
    call = Call(replace(VERIFY, **KINDS[kind], rows=((40, 150), (33, 33))), 1 << 20)
    call.hopper(HopperQueries(1, 32 if call.vectors.dim == 256 else 64, 2, items=False), tmp_path)
    call.agrees()
