"""The small kernels beside their floors: `PYTHONPATH=src:. python benchmarks/kernels/small.py` on a machine with a GPU.

Medians of CUDA graph replays that walk over copies of the operands, 300 MB of them in all, so that no cache holds the
next one. Floor: bytes read and written over 3.9 TB/s (measured on an H200).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.rms_norm import add_rms_norm, rms_norm
from headrace.kernels.rms_norm import reference as rms_norm_reference
from headrace.kernels.sample import Features, draw_on_device, sample_by_ways
from headrace.kernels.sample.slots import SlotState
from headrace.kernels.silu_mul import reference as silu_mul_reference
from headrace.kernels.silu_mul import silu_mul

BYTES_PER_S = 3.9e12
ROTATED_BYTES = 300e6
HIDDEN, INTERMEDIATE, VOCAB = 5120, 17_408, 248_320

Step = Callable[[int], object]


def graph_us(step: Step, copies: int, replays: int = 15) -> float:
    """Median microseconds of one step(i); a graph has as many steps as there are copies, and at least 20."""
    steps = max(copies, 20)
    for i in range(2):
        step(i % copies)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(steps):
            step(i % copies)
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / steps)
    return sorted(times)[len(times) // 2]


def report(name: str, rows: int, moved_bytes: float, ways: dict[str, Step], copies: int) -> None:
    floor = moved_bytes / BYTES_PER_S * 1e6
    timed = "  ".join(f"{way} {graph_us(step, copies):8.2f} us" for way, step in ways.items())
    print(f"{name:<16} rows {rows:>5}  floor {floor:7.2f} us  {timed}", flush=True)


def copies_of(nbytes: float) -> int:
    return int(min(64, max(2, ROTATED_BYTES // nbytes)))


def elementwise(rows: int) -> None:
    def made(columns: int, copies: int) -> list[Tensor]:
        return [torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]

    weight = torch.randn(HIDDEN, device="cuda", dtype=torch.bfloat16)
    moved = rows * HIDDEN * 2
    n = copies_of(2 * moved)
    x, residual = made(HIDDEN, n), made(HIDDEN, n)
    report("rms_norm", rows, 2 * moved, {
        "triton": lambda i: rms_norm(x[i], weight, 1e-6, 1.0),
        "torch": lambda i: rms_norm_reference.rms_norm(x[i], weight, 1e-6, 1.0),
    }, n)
    report("add_rms_norm", rows, 4 * moved, {
        "triton": lambda i: add_rms_norm(x[i], residual[i], weight, 1e-6, 1.0),
        "torch": lambda i: rms_norm_reference.add_rms_norm(x[i], residual[i], weight, 1e-6, 1.0),
    }, n)
    moved = rows * INTERMEDIATE * 2
    n = copies_of(2 * moved)
    fused = made(2 * INTERMEDIATE, n)
    report("silu_mul", rows, 3 * moved, {
        "triton": lambda i: silu_mul(fused[i]), "torch": lambda i: silu_mul_reference.silu_mul(fused[i]),
    }, n)


def embedding(rows: int, table: Tensor) -> None:
    tokens = [torch.randint(0, VOCAB, (rows,), device="cuda") for _ in range(32)]
    report("embedding", rows, 2 * rows * HIDDEN * 2, {"torch": lambda i: torch.nn.functional.embedding(tokens[i], table)}, 32)


# name -> ((temperature, top_k, top_p), (presence, frequency, repetition))
UNPENALISED = (0.0, 0.0, 1.0)
SAMPLED = {
    "greedy": ((0.0, 0, 1.0), UNPENALISED),
    "k20 p0.95": ((1.0, 20, 0.95), UNPENALISED),
    "k64": ((1.0, 64, 1.0), UNPENALISED),
    "k20 penalised": ((1.0, 20, 0.95), (0.1, 0.1, 1.1)),
    "whole": ((1.0, 0, 1.0), UNPENALISED),
    "p0.95": ((1.0, 0, 0.95), UNPENALISED),
    "p0.5": ((1.0, 0, 0.5), UNPENALISED),
    "k500": ((1.0, 500, 1.0), UNPENALISED),
}


def sampler(rows: int) -> None:
    state = SlotState.allocate(rows, VOCAB, torch.device("cuda"))
    slots = positions = torch.arange(rows, device="cuda")
    n = copies_of(rows * VOCAB * 2)
    logits = [(torch.randn(rows, VOCAB, device="cuda") * 2.5).bfloat16() for _ in range(n)]  # as a captured step leaves them
    wide = logits[0].float()
    for name, ((temperature, top_k, top_p), penalties) in SAMPLED.items():
        state.integers[:, 1] = top_k
        state.numbers[:] = torch.tensor([temperature, top_p, 0.0, *penalties], dtype=torch.float64)
        features = [Features(temperature == 0, top_k, top_p < 1, 0, penalties != UNPENALISED)] * rows
        by_torch = sample_by_ways(wide, state, slots, positions, features)
        same = bool(draw_on_device(logits[0], state, slots, positions).equal(by_torch))
        marks = rows * VOCAB * 4 if penalties != UNPENALISED else 0
        ways = {f"triton (torch's tokens: {same})": lambda i: draw_on_device(logits[i], state, slots, positions)}
        report(name, rows, rows * VOCAB * 2 + marks, ways, n)
        launched = launched_us(lambda features=features: sample_by_ways(wide, state, slots, positions, features))
        print(f"{name:<16} by torch, launches and all: {launched:.0f} us", flush=True)


def launched_us(step: Callable[[], object]) -> float:
    """The torch ways upload row numbers, which a graph refuses: mean of ten by events."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    step()
    start.record()
    for _ in range(10):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 100


def main() -> None:
    assert runs_triton(torch.empty(1, device="cuda")), "needs a CUDA device and Triton"
    for rows in (1, 8, 64, 2048, 8192):
        elementwise(rows)
    table = torch.randn(VOCAB, HIDDEN, device="cuda", dtype=torch.bfloat16)
    for rows in (1, 64, 8192):
        embedding(rows, table)
    for rows in (1, 8, 64):
        sampler(rows)


if __name__ == "__main__":
    main()
