"""The CUDA kernels of decoding and verification without a GPU: run on a CPU, they agree with the definition."""

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
from headrace.kernels.paged_attention.forms import FewQueries, ManyQueries, Vectors

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
SUPPORT = Path(cuda_on_cpu.__file__).parent
NO_WINDOW = 1 << 30
FEW = FewQueries(8, 3, 1)  # of 256 threads, as the harness has


def on_cpu(source: str) -> str:
    """Without what is assembly, or is there already."""
    functions = re.compile(
        r"^(?:template <[^>]*> )?__device__ __forceinline__ [^{;]*\{(?:.*\}$|[^\n]*\n(?:.*\n)*?\}$)", re.MULTILINE
    )
    kept = functions.sub(lambda found: "" if "asm" in found[0] else found[0], source)
    kept = re.sub(r"extern __shared__ .*char (\w+)\[\];", r"char* const \1 = (char*)memory;", kept)
    kept = re.sub(r"^typedef unsigned (int u32|short u16);\n", "", kept, flags=re.MULTILINE)
    kept = re.sub(r"^__device__ .*shared_address.*\n", "", kept, flags=re.MULTILINE)
    return f'#include "{SUPPORT / "attention_on_cpu.hpp"}"\n' + kept


def items_of(case: Case, part_keys: int) -> tuple[Tensor, Tensor]:
    """As `triton.split.plan_items`, with items of so many keys."""
    items, row_items, first_token = [], [], 0
    for row, (tokens, length) in enumerate(case.rows):
        begin = max(0, length - tokens + 1 - (case.window or NO_WINDOW))
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
        offsets = torch.tensor([0, *itertools.accumulate(tokens for tokens, _ in self.case.rows)], dtype=torch.int32)
        self.run("add_items", {}, -(-self.most // 4), folder, *self.sums, self.gate, self.out, offsets, self.row_items,
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
