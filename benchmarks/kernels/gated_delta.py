"""Gated DeltaNet's kernels on a GPU: `PYTHONPATH=src:. python benchmarks/kernels/gated_delta.py [WHAT ...]`, of decode,
verify, prefill, fla and profile.

Qwen3.8-27B's shape: 16 key and 48 value heads of 128, bf16 activations, fp16 states. Times are medians of graph replays over
slots that together are larger than the L2 cache, per call; the floor is bytes read and written / 3.9 TB/s. `fla` compares the
prefill with fla-core's chunk_gated_delta_rule, which must be installed.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from headrace.kernels.causal_conv1d import triton as conv
from headrace.kernels.gated_delta_mix import MixWeights, cuda
from headrace.kernels.gated_delta_mix import prefill as long_rows
from headrace.kernels.gated_delta_mix import triton as mix
from headrace.kernels.gated_delta_mix.split import split_gates, split_qkv
from headrace.kernels.gated_delta_rule import triton as rule
from headrace.kernels.gated_delta_verify import Ring
from headrace.kernels.gated_delta_verify import cuda as verify_cuda
from headrace.kernels.gated_delta_verify import triton as verify
from headrace.kernels.gated_delta_verify.cuda import EXTRA, Form
from headrace.kernels.gated_rms_norm import triton as norm
from headrace.kernels.rows import PackedRows

KEY_HEADS, HEADS, DIM, WIDTH = 16, 48, 128, 4
VALUES = HEADS * DIM
CHANNELS = 2 * KEY_HEADS * DIM + VALUES
STATE_BYTES = 2 * VALUES * DIM
BANDWIDTH = 3.9e12
ROWS = (1, 8, 16, 32, 64)
TOKENS = 8  # of a row that is verified
DEVICE = torch.device("cuda")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def weights() -> MixWeights:
    wide = torch.float32
    return MixWeights(
        normal(WIDTH, CHANNELS).T, normal(HEADS, dtype=wide), normal(HEADS, dtype=wide), 1 + 0.1 * normal(DIM, dtype=wide), 1e-6
    )


def microseconds(calls: Sequence[Callable[[], object]], replays: int = 15) -> float:
    """Median time of one of `calls`, captured together in a graph."""
    for call in calls[:2]:
        call()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def decode() -> None:
    print(f"decode: convolution, rule and norm\n{'rows':>5} {'us':>8} {'floor':>7} {'ratio':>6} {'Triton':>8}")
    w = weights()
    for rows in (1, 8, 32, 64):
        floor = 2 * rows * (STATE_BYTES + 2 * (WIDTH - 1) * CHANNELS + CHANNELS + VALUES) / BANDWIDTH * 1e6
        took, by_triton = (microseconds(decode_calls(w, rows, max(3, 128 // rows), way)) for way in (cuda.decode, mix.decode))
        print(f"{rows:>5} {took:>8.1f} {floor:>7.1f} {took / floor:>6.2f} {by_triton:>8.1f}")


def decode_calls(w: MixWeights, rows: int, sets: int, way: Callable[..., None]) -> list[Callable[[], object]]:
    states, tails = (0.1 * normal(sets * rows, HEADS, DIM, DIM)).half(), normal(sets * rows, WIDTH - 1, CHANNELS)
    qkvz, ab, out = normal(rows, CHANNELS + VALUES), normal(rows, 2 * HEADS), normal(rows, VALUES)
    singles = PackedRows((1,) * rows, DEVICE).singles
    slots = torch.arange(sets * rows, device=DEVICE).view(sets, rows)
    return [partial(way, qkvz, ab, w, tails, states, s, singles, out) for s in slots]


def verification() -> None:
    """Forms of the CUDA kernel, the chosen one, Triton's for other shapes, and fold."""
    print(f"verify: 1 certain token and 7 drafts, 3 pending; us\n{'form':>26} " + " ".join(f"{rows:>7}" for rows in ROWS))
    w = weights()
    floors = (f"{2 * rows * STATE_BYTES / BANDWIDTH * 1e6:>7.1f}" for rows in ROWS)
    print(f"{'floor (S read and written)':>26} " + " ".join(floors))
    forms = (Form(1, 1, TOKENS, EXTRA), Form(1, 2, TOKENS, 0), Form(HEADS // KEY_HEADS, 2, TOKENS, 0))
    ways: dict[str, Callable[..., object]] = {
        str(tuple(form)): partial(verify_cuda.gated_delta_verify, chosen=form) for form in forms
    }
    ways |= {"chosen": verify_cuda.gated_delta_verify, "Triton": verify.gated_delta_verify, "fold, in place": fold_before_step}
    for name, way in ways.items():
        took = (microseconds(verify_calls(w, rows, max(3, 128 // rows), way)) for rows in ROWS)
        print(f"{name:>26} " + " ".join(f"{us:>7.1f}" for us in took), flush=True)


def fold_before_step(
    qkvz: Tensor, ab: Tensor, w: MixWeights, tails: Tensor, states: Tensor, ring: Ring, pending: Tensor, parity: Tensor,
    slots: Tensor, *rest: Tensor,
) -> None:
    """fold of what is pending in the slots of a step with these arguments."""
    verify_cuda.fold(tails, states, ring, parity, slots, pending[: len(slots)], slots)


def verify_calls(w: MixWeights, rows: int, sets: int, way: Callable[..., object]) -> list[Callable[[], object]]:
    tokens, depth, slots = TOKENS, TOKENS - 1, sets * rows
    states, tails = (0.1 * normal(slots, HEADS, DIM, DIM)).half(), normal(slots, WIDTH - 1, CHANNELS)
    ring = Ring(
        (normal(slots, 2, depth, KEY_HEADS, DIM) * DIM**-0.5).half(), normal(slots, 2, depth, HEADS, DIM).half(),
        -normal(slots, 2, depth, HEADS, dtype=torch.float32).abs().cumsum(2), normal(slots, 2, depth, CHANNELS),
    )
    pending = torch.full((slots,), 3, dtype=torch.int32, device=DEVICE)
    qkvz, ab = normal(rows * tokens, CHANNELS + VALUES), normal(rows * tokens, 2 * HEADS)
    offsets = torch.arange(rows + 1, device=DEVICE, dtype=torch.int32) * tokens
    certain = torch.ones(rows, dtype=torch.int32, device=DEVICE)
    memory = (tails, states, ring, pending, torch.zeros_like(pending))
    where = torch.arange(slots, device=DEVICE).view(sets, rows)
    return [partial(way, qkvz, ab, w, *memory, s, offsets, certain, tokens) for s in where]


def prefill(with_fla: bool) -> None:
    names = f"{'both':>8} {'conv':>8} {'rule':>8} {'norm':>8} {'fla-core rule':>14}"
    print(f"prefill, us: convolution and rule in CUDA, each in Triton, norm\n{'tokens':>7} {'rows':>4} {names}")
    w = weights()
    for tokens, rows in ((1024, 1), (2048, 1), (8192, 1), (8192, 8), (32768, 1), (32768, 8)):
        packed, slots = PackedRows((tokens // rows,) * rows, DEVICE), torch.arange(rows, device=DEVICE)
        states, tails = (0.1 * normal(rows, HEADS, DIM, DIM)).half(), normal(rows, WIDTH - 1, CHANNELS)
        qkvz, ab, qkv = normal(tokens, CHANNELS + VALUES), normal(tokens, 2 * HEADS), normal(tokens, CHANNELS).half()
        (q, k, v), (a, b) = split_qkv(qkv, states), split_gates(ab)
        y, z = normal(tokens, HEADS, DIM).half(), qkvz[:, CHANNELS:].view(tokens, HEADS, DIM)
        calls = (
            partial(long_rows.convolved_rule, qkvz, ab, w, tails, states, slots, packed),
            partial(conv.causal_conv1d, qkvz[:, :CHANNELS], w.conv, tails, slots, packed, 2, torch.float16),
            partial(rule.gated_delta_rule, q, k, v, a, b, w.a_log, w.dt_bias, states, slots, packed),
            partial(norm.gated_rms_norm, y, z, w.norm, w.eps, torch.bfloat16),
        )
        listed = " ".join(f"{microseconds([call] * 3, 7):>8.0f}" for call in calls)
        peer = f"{microseconds([fla_call(q, k, v, a, b, w, states)] * 3, 7):>14.0f}" if with_fla else ""
        print(f"{tokens:>7} {rows:>4} {listed} {peer}", flush=True)


def fla_call(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, w: MixWeights, states: Tensor
) -> Callable[[], object]:
    """fla-core's on the same rows, all of one length, in bf16 as it is used, with its gates and norms in its kernels."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    rows = len(states)
    q, k, v, a, beta = (x.bfloat16().reshape(rows, -1, *x.shape[1:]).contiguous() for x in (q, k, v, a, b.sigmoid()))
    initial = states.transpose(2, 3).float().contiguous()
    return torch.no_grad()(partial(
        chunk_gated_delta_rule, q, k, v, a, beta, initial_state=initial, output_final_state=True,
        use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=w.a_log, dt_bias=w.dt_bias,
    ))


def profile() -> None:
    """Time of each kernel at 64 rows, and in a prefill of 8,192 tokens."""
    w = weights()
    packed = PackedRows((8192,), DEVICE)
    states, tails = (0.1 * normal(1, HEADS, DIM, DIM)).half(), normal(1, WIDTH - 1, CHANNELS)
    slots = torch.tensor([0], device=DEVICE)
    long = (normal(8192, CHANNELS + VALUES), normal(8192, 2 * HEADS), w, tails, states, slots, packed)
    calls = [*decode_calls(w, 64, 3, cuda.decode), *verify_calls(w, 64, 3, verify_cuda.gated_delta_verify)]
    calls += [partial(mix.gated_delta_mix, *long)] * 3
    for call in calls:
        call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for call in calls:
            call()
        torch.cuda.synchronize()
    for event in found.key_averages():
        print(f"{event.key[:40]:>40} {event.count:>4} x {event.device_time:>8.1f} us")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["decode", "verify", "prefill"]
    for name, run in (("decode", decode), ("verify", verification), ("profile", profile)):
        if name in chosen:
            run()
    if "prefill" in chosen or "fla" in chosen:
        prefill("fla" in chosen)
