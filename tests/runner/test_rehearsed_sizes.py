"""Sizes of steps that are rehearsed, by the forms of kernels that they choose: none that a step may choose is left out."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from itertools import product

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this system")

from tests.runner.test_rehearsed_forms import CARDS
from tests.support.pretended_card import META, Launch, pretended

from headrace.kernels.card import Card
from headrace.layers.linear import Linear
from headrace.quant import LinearFormat
from headrace.quant.compressed_tensors import LowBit
from headrace.quant.unquantized import Plain
from headrace.runner import rehearsal

FORMATS = (
    Plain(), LowBit(4, 128, scale="bfloat16"), LowBit(4, 32, zeros=True, scale="float16"), LowBit(8, 0, scale="bfloat16"),
    LowBit(4, 128, scale="bfloat16", activations="int8"), LowBit(4, 128, scale="bfloat16", activations="float8_e4m3fn"),
    LowBit(8, 0, scale="bfloat16", activations="int8"), LowBit(8, 0, scale="bfloat16", activations="float8_e4m3fn"),
)
MOST = 3072


def linear_layer(format: LinearFormat, inputs: int, outputs: int) -> Linear:
    layer = Linear(inputs, outputs, dtype=torch.bfloat16, device=META)
    layer.allocate(format)
    layer.prepared = not isinstance(format, Plain)
    return layer


def sampled_rows() -> Iterator[int]:
    rng = random.Random(5)
    yield from range(1, 18)
    yield from (rng.randint(18, 300) for _ in range(30))
    yield from (rng.randint(301, MOST) for _ in range(20))


class Ways:
    """A layer, as it is, gated, and beside another of few outputs."""

    def __init__(self, format: LinearFormat, inputs: int, outputs: int) -> None:
        self.layer = linear_layer(format, inputs, outputs)
        self.few = linear_layer(Plain(), inputs, 96)

    def forms(self, rows: int) -> tuple[Hashable, ...]:
        return self.layer.form_of(rows, gated=True), self.layer.form_of(rows, beside=self.few), self.few.form_of(rows)

    def run(self, rows: int, gated: bool) -> None:
        x = self.layer.like_inputs(self.layer.inputs).new_empty(rows, self.layer.inputs)
        _ = self.layer.gated(x) if gated else self.layer.beside(x, self.few)


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_numbers_of_tokens_meet_every_kernel_of_a_linear_layer(card: Card, format: LinearFormat) -> None:
    """Of any number, all launches are among those of the few numbers that a layer's forms select."""
    with pretended(card) as launches, torch.inference_mode():
        for inputs, outputs, gated in product((5120, 17_408), (34_816, 5120, 704), (False, True)):
            ways = Ways(format, inputs, outputs)
            launches.clear()
            chosen = list(rehearsal.met_by(ways.forms, rehearsal.turning_points(MOST)))
            assert len(chosen) < 45
            for rows in chosen:
                ways.run(rows, gated)
            known = of_cuda(launches)
            launches.clear()
            for rows in sampled_rows():
                ways.run(rows, gated)
            assert of_cuda(launches) <= known, (inputs, outputs, gated)


def of_cuda(launches: set[Launch]) -> set[Launch]:
    """Those of CUDA C++."""
    return {launch for launch in launches if isinstance(launch[1], int)}
