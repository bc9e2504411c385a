"""A layer's matrices on a GPU, one after the other as a step has them: `PYTHONPATH=src:. python benchmarks/kernels/layer.py`.

What each launch lets the next one do early counts here, and nowhere in times of one kernel alone. Weights of 4 bits in groups
of 128 for a Gated DeltaNet layer of a 27B model, with the norms between them, with and without the narrow projection of decay
and learning rate; then that one alone, beside cuBLAS. Medians of graph replays over weights that do not fit the L2 cache
together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from benchmarks.kernels.low_bit_linear import Weight, floor_us, line, make_weight, median_us
from torch import Tensor

from headrace.kernels.linear import linear
from headrace.kernels.low_bit_linear import low_bit_linear
from headrace.kernels.rms_norm import add_rms_norm, rms_norm

SHAPES = ((16_384, 5120), (5120, 6144), (34_816, 5120), (5120, 17_408))
REPEATS = 6

Narrow = Callable[[Tensor, Tensor], object]


def run(
    x: Tensor, mixed: Tensor, norms: tuple[Tensor, Tensor], weights: list[Weight], few: Tensor, narrow: Narrow | None
) -> None:
    """x [T, 5120], and in place of what the mixer makes of qkvz, mixed [T, 6144]."""
    qkvz, out, gate_up, down = weights
    multiply = partial(low_bit_linear, tiled=True)
    normed = add_rms_norm(x, x, norms[0], 1e-6)[0]
    if narrow is not None:
        narrow(normed, few)
    multiply(normed, qkvz.packed, qkvz.scale)
    delta = multiply(rms_norm(mixed, norms[1], 1e-6), out.packed, out.scale)
    normed = add_rms_norm(delta, x, norms[0], 1e-6)[0]
    multiply(multiply(normed, gate_up.packed, gate_up.scale, gated=True), down.packed, down.scale)


def layer(rows: int) -> None:
    layers = [[make_weight(*shape) for shape in SHAPES] for _ in range(2)]
    few = [torch.randn(96, 5120, device="cuda", dtype=torch.bfloat16) for _ in range(2 * REPEATS)]
    norms = torch.randn(5120, device="cuda"), torch.randn(6144, device="cuda")
    x, mixed = (torch.randn(rows, n, device="cuda", dtype=torch.bfloat16) for n in (5120, 6144))
    floor = sum(floor_us(rows, *shape, weight.nbytes) for shape, weight in zip(SHAPES, layers[0], strict=True))
    ways: dict[str, Narrow | None] = {"": None, ", narrow": linear, ", narrow by cuBLAS": lambda x, w: torch.mm(x, w.T)}
    for name, narrow in ways.items():
        calls = [partial(run, x, mixed, norms, layers[i % 2], few[i], narrow) for i in range(2 * REPEATS)]
        us = median_us(calls)
        print(f"layer, rows {rows}{name}: {us:.1f} us, floor {floor:.1f} ({us / floor:.2f} x)", flush=True)


def narrow_alone(rows: int) -> None:
    weights = [torch.randn(96, 5120, device="cuda", dtype=torch.bfloat16) for _ in range(250)]
    x = torch.randn(rows, 5120, device="cuda", dtype=torch.bfloat16)
    for name, way in (("ours", linear), ("cuBLAS", lambda x, w: torch.mm(x, w.T))):
        us = median_us([partial(way, x, weight) for weight in weights])
        print(line(f"96 x 5120, {name}", us, rows, 96, 5120, weights[0].nbytes), flush=True)


def main() -> None:
    with torch.no_grad():
        for rows in (1, 8):
            layer(rows)
        for rows in (1, 8, 16, 64):
            narrow_alone(rows)


if __name__ == "__main__":
    main()
