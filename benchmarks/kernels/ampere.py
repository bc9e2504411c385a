"""The sm_86 forms of the kernels beside Hopper's: `PYTHONPATH=src:. python benchmarks/kernels/ampere.py PART ...`, on Hopper.

An sm_86 form is what a card of compute capability 8.6 is given: tiles within 99 KB, PTX for sm_86 (here the driver compiles
it), no early start. linear, attention, gated_delta: what decoding and verification call, both forms over the same memory, and
Hopper's without its early start. prefill: the rest, in Triton too, which needs a process for each form. Times are medians of
graph replays over more memory than the L2 cache holds; TB/s and TFLOP/s are the sm_86 form's. --once: every kernel of a part
runs once, which fills the compilers' caches.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.kernels import attention, gated_delta
from benchmarks.kernels.attention import Layers, Scenario
from benchmarks.kernels.low_bit_linear import SHAPES, copies_beyond_l2, make_weight, median_us

from headrace.kernels import card as cards
from headrace.kernels import nvrtc
from headrace.kernels.card import Card
from headrace.kernels.cuda_function import CudaFunction
from headrace.kernels.gated_delta_mix import cuda as mix
from headrace.kernels.gated_delta_mix import gated_delta_mix
from headrace.kernels.gated_delta_verify import cuda as verify
from headrace.kernels.low_bit_linear import low_bit_linear
from headrace.kernels.rows import PackedRows
from headrace.kernels.variant import SHARED_BYTES

LINEAR_ROWS = (1, 8, 16, 32, 64)
GATED_ROWS = (1, 8, 32, 64)
PREFILL_ROWS, PREFILL_TOKENS = (256, 2048), (1024, 8192)
Calls = Sequence[Callable[[], Any]]


@contextmanager
def not_early() -> Iterator[None]:
    """Kernels wait for the end of the one before, as on a card that has no early start."""
    launch = CudaFunction.__call__

    def plain(self: CudaFunction, *arguments: Any) -> None:
        kept, self._attributes = self._attributes, (self._attributes[0], 0)
        launch(self, *arguments)
        self._attributes = kept

    with patch.object(CudaFunction, "__call__", plain):
        yield


@contextmanager
def as_ampere() -> Iterator[None]:
    """Forms are chosen for sm_86, and CUDA C++ becomes PTX for it."""
    own, compiled = cards._card, nvrtc.compiled

    def card(index: int) -> Card:
        return Card(86, own(index).processors, SHARED_BYTES[86])

    def ptx(text: str, macros: Any, *_: str) -> bytes:
        return compiled(text, macros, "compute_86")

    with not_early(), patch.object(cards, "_card", card), patch.object(nvrtc, "compiled", ptx):
        yield


def triton_as_ampere() -> None:
    """For the whole process: Triton, too, compiles for sm_86, and leaves its PTX to the driver."""
    from triton.backends.nvidia.compiler import CUDABackend

    CUDABackend.make_cubin = lambda self, src, *_: src.encode() + b"\0"
    torch.cuda.get_device_capability = lambda *_: (8, 6)


class Table:
    """Prints a line for each row of it. once: runs a call of each form instead."""

    def __init__(self, once: bool) -> None:
        self.once = once

    def head(self) -> None:
        if not self.once:
            print(f"{'':40} {'sm_86':>8} {'Hopper':>8} {'ratio':>6} {'not early':>9} {'ratio':>6} {'TB/s':>6} {'TFLOP/s':>8}")

    def row(self, name: str, nbytes: float, flops: float, calls: Callable[[], Calls]) -> None:
        times = []
        torch.cuda.synchronize()  # the inputs are made on another stream
        for form in (as_ampere, nullcontext, not_early):
            with form():
                if self.once:
                    calls()[0]()
                    torch.cuda.synchronize()
                else:
                    times.append(median_us(list(calls()), 5))
        if not self.once:
            us, hopper, plain = times
            line = f"{name:40} {us:>8.1f} {hopper:>8.1f} {us / hopper:>6.2f} {plain:>9.1f} {us / plain:>6.2f}"
            print(f"{line} {nbytes / us / 1e6:>6.2f} {flops / us / 1e6:>8.0f}", flush=True)

    def lone(self, name: str, nbytes: float, flops: float, calls: Calls) -> None:
        """A row of this process's form alone."""
        torch.cuda.synchronize()
        if self.once:
            calls[0]()
        else:
            us = median_us(list(calls), 5)
            print(f"{name:40} {us:>8.1f} us {nbytes / us / 1e6:>6.2f} TB/s {flops / us / 1e6:>8.0f} TFLOP/s", flush=True)


def linear(table: Table) -> None:
    for outputs, inputs in SHAPES:
        weights = [make_weight(outputs, inputs) for _ in range(1 if table.once else copies_beyond_l2(outputs * inputs // 2))]
        for rows in LINEAR_ROWS:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            calls = [partial(low_bit_linear, x, w.packed, w.scale, w.zero, tiled=True) for w in weights]
            flops = 2 * rows * outputs * inputs
            table.row(f"linear {outputs} x {inputs}, {rows} rows", weights[0].nbytes, flops, partial(list, calls))


def attention_rows(table: Table) -> None:
    for scenario in attention.SCENARIOS:
        if not scenario.is_prefill:
            calls = Layers(scenario).calls
            table.row(f"attention {scenario.name} {scenario.kv}", scenario.kv_bytes, scenario.flops, calls)


def gated_delta_rows(table: Table) -> None:
    made = gated_delta.weights()
    for rows in GATED_ROWS:
        state = 2 * rows * gated_delta.STATE_BYTES
        sets = 3 if table.once else max(3, 128 // rows)
        decoding = gated_delta.decode_calls(made, rows, sets, mix.decode)
        table.row(f"gated delta decode, {rows} rows", state, 0, partial(list, decoding))
        verifying = gated_delta.verify_calls(made, rows, sets, verify.gated_delta_verify)
        table.row(f"gated delta verify, {rows} rows of 8 tokens", state, 0, partial(list, verifying))


def prefill(table: Table) -> None:
    """This process's form alone."""
    for outputs, inputs in SHAPES:
        weights = [make_weight(outputs, inputs) for _ in range(2)]
        for rows in PREFILL_ROWS:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            calls = [partial(low_bit_linear, x, w.packed, w.scale, w.zero, tiled=True) for w in weights]
            table.lone(f"linear {outputs} x {inputs}, {rows} rows", weights[0].nbytes, 2 * rows * outputs * inputs, calls)
    for scenario in attention.SCENARIOS:
        if scenario.is_prefill:
            layers = Layers(_small(scenario) if table.once else scenario)
            table.lone(f"attention {scenario.name} {scenario.kv}", scenario.kv_bytes, scenario.flops, layers.calls())
    for tokens in PREFILL_TOKENS:
        nbytes = 2 * tokens * (gated_delta.CHANNELS + 2 * gated_delta.VALUES)  # inputs, gate, output
        table.lone(f"gated delta, {tokens} tokens", nbytes, 0, [_gated_delta_prefill(tokens)] * 3)


def _small(scenario: Scenario) -> Scenario:
    return replace(scenario, rows=tuple((min(n, 512), min(n, 512) + 512 * (length > n)) for n, length in scenario.rows))


def _gated_delta_prefill(tokens: int) -> Callable[[], Any]:
    """Convolution, rule and norm of one prompt."""
    g = gated_delta
    states, tails = (0.1 * g.normal(1, g.HEADS, g.DIM, g.DIM)).half(), g.normal(1, g.WIDTH - 1, g.CHANNELS)
    qkvz, ab = g.normal(tokens, g.CHANNELS + g.VALUES), g.normal(tokens, 2 * g.HEADS)
    slots = torch.arange(1, device=g.DEVICE)
    return partial(gated_delta_mix, qkvz, ab, g.weights(), tails, states, slots, PackedRows((tokens,), g.DEVICE))


PARTS = {"linear": linear, "attention": attention_rows, "gated_delta": gated_delta_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=(*PARTS, "prefill"))
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--form", choices=("hopper", "ampere"), help="of prefill alone; both, each in a process, by default")
    args = parser.parse_args()
    for part in args.parts:
        if part in PARTS:
            table = Table(args.once)
            table.head()
            PARTS[part](table)
        elif args.form is None:
            for form in ("hopper", "ampere"):
                print(f"-- prefill, {form}", flush=True)
                command = [sys.executable, sys.argv[0], "prefill", "--form", form, *(["--once"] if args.once else [])]
                subprocess.run(command, env=os.environ | {"TRITON_CACHE_DIR": f"/tmp/triton-{form}"}, check=True)
        elif args.form == "ampere":
            triton_as_ampere()
            with as_ampere():
                prefill(Table(args.once))
        else:
            prefill(Table(args.once))


if __name__ == "__main__":
    with torch.no_grad():
        main()
