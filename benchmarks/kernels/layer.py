"""A Gated DeltaNet layer's launches, in turn as a step has them: `PYTHONPATH=src:. python benchmarks/kernels/layer.py`.

What each launch lets the next one do early counts here, and nowhere in times of one kernel alone. Weights of 4 bits in groups
of 128 for a 27B model, one token of each row; with the norms and the narrow projection of decay and learning rate in launches
of their own (eight of a layer), and as layers have it (five: norms folded into the products around them, the narrow projection
beside another); then that projection alone, beside cuBLAS. Medians of graph replays over weights that do not fit the L2 cache
together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from benchmarks.kernels.low_bit_linear import Weight, floor_us, line, make_weight, median_us
from torch import Tensor

from headrace.kernels.gated_delta_mix import MixWeights, gated_delta_mix
from headrace.kernels.linear import linear
from headrace.kernels.low_bit_linear import low_bit_linear, low_bit_linear_beside, low_bit_linear_norm
from headrace.kernels.low_bit_linear.cuda import MOST_FEW_ROWS
from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm, add_rms_norm
from headrace.kernels.rows import PackedRows

HIDDEN, KEY_HEADS, HEADS, HEAD_DIM, TAPS = 5120, 16, 48, 128, 4
VALUES, CHANNELS = HEADS * HEAD_DIM, (2 * KEY_HEADS + HEADS) * HEAD_DIM
SHAPES = {"qkvz": (CHANNELS + VALUES, HIDDEN), "out": (HIDDEN, VALUES), "gate_up": (34_816, HIDDEN), "down": (HIDDEN, 17_408)}
LAYERS, DISTINCT = 12, 2
EPS, BYTES_PER_S = 1e-6, 3.9e12

numbers = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
wide = partial(torch.randn, device="cuda")


class Layers:
    """LAYERS layers, of DISTINCT ones' matrices in turn, over `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows, self.slots = PackedRows((1,) * rows, torch.device("cuda")), torch.arange(rows, device="cuda")
        self.weights = [{name: make_weight(*shape) for name, shape in SHAPES.items()} for _ in range(DISTINCT)]
        self.narrow = [numbers(2 * HEADS, HIDDEN) * HIDDEN**-0.5 for _ in range(LAYERS)]
        self.norm = NormWeight(1 + 0.2 * wide(HIDDEN), EPS)
        self.mix = MixWeights(numbers(TAPS, CHANNELS).T, wide(HEADS), wide(HEADS), wide(HEAD_DIM), EPS)
        self.states = [wide(rows, HEADS, HEAD_DIM, HEAD_DIM).half() / 10 for _ in range(LAYERS)]
        self.tails = [numbers(rows, TAPS - 1, CHANNELS) for _ in range(LAYERS)]
        self.x, self.mixed = numbers(rows, HIDDEN), numbers(rows, VALUES)

    def matrix(self, index: int, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
        weight: Weight = self.weights[index % DISTINCT][name]
        return weight.packed, weight.scale, weight.zero

    def mixer(self, index: int, qkvz: Tensor, ab: Tensor, decodes: bool) -> Tensor:
        if not decodes:
            return self.mixed
        tails, states = self.tails[index], self.states[index]
        return gated_delta_mix(qkvz, ab, self.mix, tails, states, self.slots, self.rows)

    def eight(self, decodes: bool) -> None:
        multiply = partial(low_bit_linear, tiled=True)
        delta = total = self.x
        for i in range(LAYERS):
            normed, total = add_rms_norm(delta, total, self.norm.weight, EPS)
            ab = linear(normed, self.narrow[i])
            mixed = self.mixer(i, multiply(normed, *self.matrix(i, "qkvz")), ab, decodes)
            normed, total = add_rms_norm(multiply(mixed, *self.matrix(i, "out")), total, self.norm.weight, EPS)
            delta = multiply(multiply(normed, *self.matrix(i, "gate_up"), gated=True), *self.matrix(i, "down"))

    def five(self, decodes: bool) -> None:
        normed: Activations = PendingNorm(self.x, squares_before(len(self.x)), EPS)
        total = self.x
        for i in range(LAYERS):
            qkvz, ab = low_bit_linear_beside(normed, *self.matrix(i, "qkvz"), self.narrow[i], tiled=True)
            mixed = self.mixer(i, qkvz, ab, decodes)
            normed, total = low_bit_linear_norm(mixed, *self.matrix(i, "out"), total, self.norm, tiled=True)
            gated = low_bit_linear(normed, *self.matrix(i, "gate_up"), tiled=True, gated=True)
            normed, total = low_bit_linear_norm(gated, *self.matrix(i, "down"), total, self.norm, tiled=True)


def squares_before(rows: int) -> Tensor:
    """As a product leaves them that has the norm of so many rows behind it: a mean of 1."""
    if rows <= MOST_FEW_ROWS:
        return torch.full((rows, HIDDEN // 16), 16.0, device="cuda")
    return torch.full((HIDDEN // 128, rows), 128.0, device="cuda").T


def layer(rows: int) -> None:
    layers = Layers(rows)
    nbytes = [weight.nbytes for weight in layers.weights[0].values()]
    products = sum(floor_us(rows, *shape, n) for shape, n in zip(SHAPES.values(), nbytes, strict=True))
    states = 2 * layers.states[0].nbytes / BYTES_PER_S * 1e6
    ways: dict[str, Callable[[bool], None]] = {"eight launches": layers.eight, "five": layers.five}
    for name, way in ways.items():
        whole, without = (median_us([partial(way, decodes)]) / LAYERS for decodes in (True, False))
        print(f"layer, rows {rows}, {name}: {whole:.1f} us, floor {products + states:.1f}; "
              f"without the mixer {without:.1f}, floor {products:.1f}", flush=True)


def narrow_alone(rows: int) -> None:
    weights = [numbers(2 * HEADS, HIDDEN) for _ in range(250)]
    x = numbers(rows, HIDDEN)
    for name, way in (("ours", linear), ("cuBLAS", lambda x, w: torch.mm(x, w.T))):
        us = median_us([partial(way, x, weight) for weight in weights])
        print(line(f"96 x 5120, {name}", us, rows, 2 * HEADS, HIDDEN, weights[0].nbytes), flush=True)


def main() -> None:
    with torch.no_grad():
        for rows in (1, 2, 4, 8, 16, 32, 64):
            layer(rows)
        for rows in (1, 8, 16, 64):
            narrow_alone(rows)


if __name__ == "__main__":
    main()
