"""Paged attention on a GPU: `PYTHONPATH=src:. python benchmarks/kernels/attention.py PART ...`, with these parts.

compile: fill the compilers' caches, in parallel. check: the operation's cases on NaN-filled outputs, against the reference in
float32. table: decode, verify and prefill on the shape of a 27B model (24 query heads of 256 over 4 key heads, pages of 16
tokens), beside their floors and PyTorch's attention over contiguous keys; and the norm, rotation and write before it. shapes:
some queries of each against float32. sweep: the table with other forms of the CUDA kernels, fastest first. triton: the table
with Triton's kernels, which run where there is no NVRTC. A time is the median of graph replays over layers whose pools do not
fit the L2 cache together; all of them share one plan, as in a model. (Forms for sm_86: ampere.py.)
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.card import card
from headrace.kernels.kv_write.codes import encode
from headrace.kernels.paged_attention import PagedRows, cases, cuda, forms, reference
from headrace.kernels.paged_attention import triton as op
from headrace.kernels.paged_attention.forms import FewQueries, ManyQueries, Vectors
from headrace.kernels.qk_norm_rope_kv_write import HeadNorm, Heads, qk_norm_rope_kv_write

KV, GROUP, DIM, PAGE = 4, 6, 256, 16
BYTES_PER_S, FLOPS_PER_S = 3.9e12, 790e12
BEYOND_L2_BYTES = 300e6
Form = FewQueries | ManyQueries
POOLS = {"bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Scenario:
    """rows: (query tokens, length) each."""

    name: str
    rows: tuple[tuple[int, int], ...]
    kv: str

    @property
    def kv_bytes(self) -> int:
        """Of one layer: what all rows must read."""
        vector = DIM * 2 if self.kv in ("bf16", "fp16") else DIM + 2
        return sum(length for _, length in self.rows) * 2 * KV * vector

    @property
    def flops(self) -> int:
        """Of one layer, causal: a query counts the keys that it sees."""
        pairs = sum(n * (length - n) + n * (n + 1) // 2 for n, length in self.rows)
        return 4 * KV * GROUP * DIM * pairs

    @property
    def is_prefill(self) -> bool:
        return any(n > op.SPLIT_QUERIES for n, _ in self.rows)

    @property
    def floor_us(self) -> float:
        return 1e6 * max(self.kv_bytes / BYTES_PER_S, self.flops / FLOPS_PER_S)


SCENARIOS = (
    Scenario("1 x 131k", ((1, 131072),), "int8"),
    Scenario("1 x 131k", ((1, 131072),), "fp8"),
    Scenario("1 x 131k", ((1, 131072),), "bf16"),
    Scenario("64 x 1k", ((1, 1024),) * 64, "bf16"),
    Scenario("64 x 1k", ((1, 1024),) * 64, "int8"),
    Scenario("1 x 1k", ((1, 1024),), "bf16"),
    Scenario("1 x 1k", ((1, 1024),), "int8"),
    Scenario("8 x 1k", ((1, 1024),) * 8, "bf16"),
    Scenario("1 x 32k and 63 x 1k", ((1, 32768),) + ((1, 1024),) * 63, "int8"),
    Scenario("8 tokens, 1 x 1k", ((8, 1024),), "bf16"),
    Scenario("8 tokens, 64 x 1k", ((8, 1024),) * 64, "bf16"),
    Scenario("8 tokens, 64 x 1k", ((8, 1024),) * 64, "int8"),
    Scenario("8 tokens, 1 x 131k", ((8, 131072),), "int8"),
    Scenario("32 tokens, 8 x 8k", ((32, 8192),) * 8, "bf16"),
    Scenario("prefill 1k", ((1024, 1024),), "bf16"),
    Scenario("prefill 8k", ((8192, 8192),), "bf16"),
    Scenario("prefill last 8k of 32k", ((8192, 32768),), "bf16"),
    Scenario("prefill 8k", ((8192, 8192),), "int8"),
    Scenario("prefill 8k", ((8192, 8192),), "fp8"),
    Scenario("prefill last 1k of 32k", ((1024, 32768),), "bf16"),
)


class Layers:
    """A scenario's rows, and pools of as many layers as do not fit the L2 cache together."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        needed = [-(-length // PAGE) for _, length in scenario.rows]
        order = torch.randperm(sum(needed), device="cuda")
        table = torch.zeros(len(needed), max(needed), dtype=torch.int64, device="cuda")
        taken = 0
        for row, count in enumerate(needed):
            table[row, :count] = order[taken : taken + count]
            taken += count
        self.queries, self.lengths = zip(*scenario.rows, strict=True)
        offsets = torch.tensor([0, *itertools.accumulate(self.queries)], dtype=torch.int32, device="cuda")
        self._rows = (table, torch.tensor(self.lengths, dtype=torch.int32, device="cuda"), offsets)
        count = 1 if scenario.is_prefill else max(2, math.ceil(BEYOND_L2_BYTES / scenario.kv_bytes))
        self.pools = [self._pool(sum(needed)) for _ in range(count)]
        tokens = sum(self.queries)
        self.q = torch.randn(tokens, KV * GROUP, DIM, device="cuda").bfloat16()
        self._kept: PagedRows | None = None
        self.gate = (2 * torch.rand(tokens, KV * GROUP, 2 * DIM, device="cuda") - 1).bfloat16()[..., DIM:]

    def _pool(self, pages: int) -> tuple[Tensor, ...]:
        made: list[tuple[Tensor, ...]] = []
        for _ in range(2):
            pool = torch.randn(pages, PAGE, KV, DIM, device="cuda", dtype=torch.bfloat16)
            dtype = POOLS[self.scenario.kv]
            made.append((pool.to(dtype),) if dtype.is_floating_point and dtype.itemsize > 1 else encode(pool, dtype))
        return tuple(part for pair in zip(*made, strict=True) for part in pair)

    def rows(self) -> PagedRows:
        """Planned anew each time, on the device; a prefill's list of tiles comes from the host, and is kept."""
        if self._kept is None or not self.scenario.is_prefill:
            self._kept = op.plan_rows(*self._rows, self.queries, PAGE)
        return self._kept

    def calls(self) -> list[Callable[[], Tensor]]:
        rows = self.rows()
        return [lambda pool=pool: op.paged_attention(  # type: ignore[misc]
            self.q, pool[0], pool[1], rows, DIM**-0.5, *(pool[2:] or (None, None)), self.gate) for pool in self.pools]


def median_us(make: Callable[[], list[Callable[[], Any]]], replays: int = 7) -> float:
    """Microseconds of one call, when all of them follow each other in a captured graph."""
    torch.cuda.synchronize()  # the inputs are made on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        make()[0]()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls = make()
        for call in calls:
            call()
    times = []
    for _ in range(replays + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return sorted(times[2:])[replays // 2]


@contextmanager
def form_set(form: Form | None) -> Iterator[None]:
    """The CUDA kernels of decoding and verification in this form instead of their own choice."""
    kept = forms.few_queries_form, forms.many_queries_form
    if form is not None:
        forms.few_queries_form = forms.many_queries_form = lambda *_: form  # type: ignore[assignment, return-value]
    try:
        yield
    finally:
        forms.few_queries_form, forms.many_queries_form = kept


def report(scenario: Scenario, us: float, note: str = "") -> str:
    work = f"{scenario.flops / us / 1e6:5.0f} TFLOP/s" if scenario.is_prefill else f"{scenario.kv_bytes / us / 1e6:5.2f} TB/s"
    return f"{scenario.name:24s} {scenario.kv:5s} {us:9.1f} us  {work}  {us / scenario.floor_us:5.2f} x floor  {note}"


# What is correct


CHECKED = list(itertools.product(cases.CASES, (torch.bfloat16, torch.float16, torch.float32)))


def on_cuda(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cuda() if isinstance(value, Tensor) else value for name, value in given.items()}


def check() -> None:
    worst: dict[str, tuple[float, float]] = {}
    for case, dtype in CHECKED:
        given = cases.inputs(case, dtype)
        wide = {k: v.float() if isinstance(v, Tensor) and v.dtype in (torch.float16, torch.bfloat16) else v
                for k, v in copy.deepcopy(given).items()}
        expected = cases.run(reference, wide)[0].double()
        with poisoned():
            found = cases.run(op, on_cuda(given))[0].double().cpu()
        rms = float(expected.square().mean().sqrt())
        error = (found - expected).abs() / rms
        largest, mean = float(error.max()), float(error.mean())
        worst[str(dtype)] = tuple(max(pair) for pair in zip(worst.get(str(dtype), (0, 0)), (largest, mean), strict=True))
        limits = (1e-4, 1e-5) if dtype == torch.float32 else (2e-2, 3e-3)
        if not (largest <= limits[0] and mean <= limits[1]):
            print(f"WRONG {case.name} {dtype}: largest {largest:.3%}, mean {mean:.4%} of rms")
    print("largest and mean errors of rms over the cases:", {k: f"{a:.3%} {b:.4%}" for k, (a, b) in worst.items()})


def check_shapes() -> None:
    """The scenarios against float32 PyTorch, some queries of each."""
    for scenario in SCENARIOS:
        layers = Layers(scenario)
        with poisoned():
            found = layers.calls()[0]().float()
        rows, pool, queries = layers.rows(), layers.pools[0], torch.cumsum(torch.tensor(layers.queries), 0)
        for row in {0, len(layers.queries) - 1}:
            n, length = scenario.rows[row]
            picked = sorted({0, n // 2, n - 1})
            places = (rows.page_table[row][:, None] * PAGE + torch.arange(PAGE, device="cuda")).flatten()[:length]
            k, v = (side.view(torch.uint8) if side.dtype == torch.float8_e4m3fn else side for side in pool[:2])
            k, v = (side.view(-1, KV, DIM)[places].view(own.dtype).float() for side, own in zip((k, v), pool[:2], strict=True))
            if len(pool) > 2:
                k, v = (side * scales.view(-1, KV)[places].float()[..., None]
                        for side, scales in zip((k, v), pool[2:], strict=True))
            at = [int(queries[row]) - n + i for i in picked]
            q = layers.q[at].float().view(len(at), KV, GROUP, DIM)
            scores = torch.einsum("tkgd,lkd->tkgl", q, k) * DIM**-0.5
            positions = torch.tensor([length - n + i for i in picked], device="cuda")
            seen = torch.arange(length, device="cuda") <= positions[:, None]
            weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
            want = torch.einsum("tkgl,lkd->tkgd", weights, v).reshape(len(at), KV * GROUP, DIM)
            want *= layers.gate[at].float().sigmoid()
            error = (found[at] - want).abs() / want.square().mean((1, 2), keepdim=True).sqrt()
            if not (float(error.max()) <= 2e-2 and float(error.mean()) <= 3e-3):
                print(f"WRONG {scenario.name} {scenario.kv} row {row}: {float(error.max()):.3%} {float(error.mean()):.4%}")
    print("shapes checked")


@contextmanager
def poisoned() -> Iterator[None]:
    kept = torch.empty, torch.empty_like

    def nan(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *a, **k: (t := make(*a, **k)).fill_(float("nan") if t.dtype.is_floating_point else 1 << 30)

    torch.empty, torch.empty_like = nan(torch.empty), nan(torch.empty_like)
    try:
        yield
    finally:
        torch.empty, torch.empty_like = kept


# How fast


def peer_us(scenario: Scenario) -> float | None:
    """PyTorch's attention over contiguous bf16 keys, the fastest of its back ends; None where no back end takes it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    n, length = scenario.rows[0]
    if len(set(scenario.rows)) > 1 or scenario.kv != "bf16" or (n > 1 and n != length):
        return None
    count = max(1, math.ceil(BEYOND_L2_BYTES / scenario.kv_bytes))
    rows = len(scenario.rows)
    q = torch.randn(rows, KV * GROUP, n, DIM, device="cuda", dtype=torch.bfloat16)
    pools = [torch.randn(2, rows, KV, length, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    times = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        def calls(backend: Any = backend) -> list[Callable[[], Any]]:
            def one(pool: Tensor) -> Tensor:
                with sdpa_kernel(backend):
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, pool[0], pool[1], is_causal=n > 1, enable_gqa=True)

            return [lambda pool=pool: one(pool) for pool in pools]  # type: ignore[misc]

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # why a back end does not take this shape
                times.append(median_us(calls))
        except RuntimeError:
            continue
    return min(times, default=None)


def table(peers: bool = True) -> None:
    for scenario in SCENARIOS:
        layers = Layers(scenario)
        us = median_us(layers.calls)
        peer = peer_us(scenario) if peers else None
        print(report(scenario, us, f"PyTorch, contiguous: {peer:.1f} us" if peer else ""), flush=True)
    for kv in ("bf16", "int8", "fp8"):
        for tokens in (1, 8, 64, 512, 8192):
            before_attention(tokens, kv)


def before_attention(tokens: int, kv: str) -> None:
    """Norm, rotation and write of as many layers as do not fit the L2 cache; floor: all read and written once."""
    heads, dtype = Heads(KV * GROUP, KV, DIM, gated=True), POOLS[kv]
    written = 2 * KV * (DIM * dtype.itemsize + (2 if dtype.itemsize == 1 else 0))
    size = tokens * (2 * (heads.queries * DIM * 2 + 2 * KV * DIM) + written)
    count = min(64, max(1, math.ceil(BEYOND_L2_BYTES / size)))
    inputs = [torch.randn(tokens, heads.width, device="cuda").bfloat16() for _ in range(count)]
    cos, sin = torch.randn(2, tokens, 1, 32, device="cuda")
    norm = HeadNorm(*torch.randn(2, DIM, device="cuda"), 1e-6, 1.0)
    pages = 2 * -(-tokens // PAGE)
    keys, values = torch.zeros(2, pages, PAGE, KV, DIM, device="cuda").to(dtype)
    scales = torch.zeros(2, pages, PAGE, KV, dtype=torch.float16, device="cuda") if dtype.itemsize == 1 else (None, None)
    write_at = torch.randperm(pages * PAGE, device="cuda")[:tokens]

    def calls() -> list[Callable[[], Tensor]]:
        return [lambda qkv=qkv: qk_norm_rope_kv_write(  # type: ignore[misc]
            qkv, cos, sin, heads, norm, keys, values, write_at, *scales) for qkv in inputs]

    us = median_us(calls)
    floor_us = 1e6 * size / BYTES_PER_S
    print(f"norm, rotate, write {tokens:5d} {kv:5s} {us:8.1f} us  {size / us / 1e6:5.2f} TB/s  {us / floor_us:5.2f} x floor")


def use_triton() -> None:
    cuda.suits = lambda *_: False  # type: ignore[assignment]


def swept(scenario: Scenario) -> list[Form]:
    """Other forms, of which not all fit."""
    queries = max(n for n, _ in scenario.rows) * GROUP
    if scenario.is_prefill:
        return []
    if queries <= forms.MOST_FEW_QUERIES:
        return [FewQueries(*form) for form in itertools.product((4, 6, 8), (3, 5), (1, 2))]
    vectors, facts = Vectors(DIM, POOLS[scenario.kv].itemsize), card(torch.device("cuda"))
    if vectors.itemsize == 2 and (facts.capability == 90 or queries > forms.MOST_MANY_QUERIES):
        return []
    chosen = forms.many_queries_form(queries, vectors, facts)
    return [replace(chosen, slots=slots, resident=resident) for slots in (3, 4, 5) for resident in (1, 2)]


def compile_all(worker: int, workers: int, *, sweeps: bool, checks: bool) -> None:
    """This worker's share of the kernels that the other parts run, into the compilers' caches."""
    todo = [(scenario, form) for scenario in SCENARIOS for form in (None, *(swept(scenario) if sweeps else ()))]
    for scenario, form in todo[worker::workers]:
        small = Scenario(scenario.name, tuple((n, min(length, max(n, 2048))) for n, length in scenario.rows[:2]), scenario.kv)
        with form_set(form):
            try:
                Layers(small).calls()[0]()
            except Exception as error:
                print(f"  {scenario.name} {form}: {type(error).__name__} {str(error)[:80]}")
    for case, dtype in (CHECKED if checks else [])[worker::workers]:
        cases.run(op, on_cuda(cases.inputs(case, dtype)))


def sweep() -> None:
    for scenario in SCENARIOS:
        found: list[tuple[float, Form]] = []
        layers = Layers(scenario) if swept(scenario) else None
        for form in swept(scenario):
            assert layers is not None
            with form_set(form):
                try:
                    found.append((median_us(layers.calls, 5), form))
                except RuntimeError as error:
                    print(f"  {form}: {str(error)[:80]}")
        for us, form in sorted(found, key=lambda pair: pair[0])[:4]:
            print(report(scenario, us, str(form)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=("compile", "check", "shapes", "sweep", "table", "triton"))
    parser.add_argument("--worker", type=int)
    parser.add_argument("--workers", type=int, default=min(15, os.cpu_count() or 1))
    parser.add_argument("--with", dest="kernels", choices=("triton",), help="other kernels than the card's own")
    args = parser.parse_args()
    if args.kernels:
        use_triton()
    if args.worker is not None:
        return compile_all(args.worker, args.workers, sweeps="sweep" in args.parts, checks="check" in args.parts)
    for part in args.parts:
        begin = time.time()
        if part == "compile":
            command = [sys.executable, *sys.argv, "--workers", str(args.workers), "--worker"]
            running = [subprocess.Popen([*command, str(i)]) for i in range(args.workers)]
            for process in running:
                process.wait()
        elif part == "triton":
            subprocess.run([sys.executable, sys.argv[0], "compile", "table", "--with", part], check=True)
        else:
            {"check": check, "shapes": check_shapes, "sweep": sweep, "table": lambda: table(args.kernels is None)}[part]()
        print(f"-- {part}: {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
