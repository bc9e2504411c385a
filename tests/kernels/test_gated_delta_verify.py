"""Deferred commit: whatever is drafted, accepted, folded and copied on the way, the outputs are those of plain decoding."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace.kernels.gated_delta_mix import MixWeights, gated_delta_mix
from headrace.kernels.gated_delta_verify import MAX_TOKENS, Ring, advance, cases, fold, gated_delta_verify, reference
from headrace.kernels.rows import PackedRows

KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM, WIDTH, DEPTH, SLOTS = 1, 2, 6, 4, 4, 6, 5
CHANNELS = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
STREAM = 48  # true tokens of a sequence


@dataclass
class Memory:
    """The slots of one layer; full of NaN where nothing was written that may be read."""

    tails: Tensor
    states: Tensor
    ring: Ring
    pending: Tensor
    parity: Tensor

    @classmethod
    def empty(cls) -> Memory:
        def nan(*shape: int) -> Tensor:
            return torch.full(shape, float("nan"), dtype=torch.float64)

        ring = Ring(
            nan(SLOTS, 2, DEPTH, KEY_HEADS, KEY_DIM), nan(SLOTS, 2, DEPTH, HEADS, VALUE_DIM), nan(SLOTS, 2, DEPTH, HEADS),
            nan(SLOTS, 2, DEPTH, CHANNELS),
        )
        count = torch.zeros(SLOTS, dtype=torch.int32)
        return cls(nan(SLOTS, WIDTH - 1, CHANNELS), nan(SLOTS, HEADS, VALUE_DIM, KEY_DIM), ring, count, count.clone())

    def clear(self, slot: int) -> None:
        self.tails[slot], self.states[slot], self.pending[slot] = 0, 0, 0

    def forget(self, slot: int) -> None:
        """What the ring may not be asked for any more: rejected drafts, and all of the half that is folded."""
        half, count = int(self.parity[slot]), int(self.pending[slot])
        for x in (self.ring.keys, self.ring.deltas, self.ring.decays, self.ring.inputs):
            x[slot, half, count:] = float("nan")
            x[slot, 1 - half] = float("nan")


@dataclass
class Sequence:
    slot: int
    qkvz: Tensor  # [STREAM, ...]
    ab: Tensor
    expected: Tensor  # [STREAM, HEADS * VALUE_DIM] by plain decoding
    done: int = 0  # tokens of the stream that are accepted


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def make_weights(rng: torch.Generator) -> MixWeights:
    return MixWeights(
        draw(rng, CHANNELS, WIDTH), draw(rng, HEADS), draw(rng, HEADS), 1 + 0.3 * draw(rng, VALUE_DIM), 1e-6
    )


def make_sequence(rng: torch.Generator, weights: MixWeights, slot: int) -> Sequence:
    qkvz, ab = draw(rng, STREAM, CHANNELS + HEADS * VALUE_DIM), draw(rng, STREAM, 2 * HEADS)
    tails, states = torch.zeros(1, WIDTH - 1, CHANNELS).double(), torch.zeros(1, HEADS, VALUE_DIM, KEY_DIM).double()
    where, one = torch.tensor([0]), PackedRows((1,), torch.device("cpu"))
    outputs = [gated_delta_mix(qkvz[t : t + 1], ab[t : t + 1], weights, tails, states, where, one) for t in range(STREAM)]
    return Sequence(slot, qkvz, ab, torch.cat(outputs))


def verify_step(
    memory: Memory, weights: MixWeights, rows: list[tuple[Sequence, int, int, int]], rng: torch.Generator
) -> None:
    """rows: (sequence, certain, drafts, accepted). The drafts that are not accepted are not the stream's."""
    qkvz, ab = [], []
    for sequence, certain, drafts, accepted in rows:
        good = slice(sequence.done, sequence.done + certain + accepted)
        wrong = drafts - accepted
        qkvz += [sequence.qkvz[good], draw(rng, wrong, sequence.qkvz.shape[1])]
        ab += [sequence.ab[good], draw(rng, wrong, 2 * HEADS)]
    counts = [certain + drafts for _, certain, drafts, _ in rows]
    offsets = torch.tensor([0, *counts]).cumsum(0).int()
    slots, certain_ = torch.tensor([s.slot for s, *_ in rows]), torch.tensor([c for _, c, _, _ in rows]).int()
    out = gated_delta_verify(
        torch.cat(qkvz), torch.cat(ab), weights, memory.tails, memory.states, memory.ring, memory.pending, memory.parity, slots,
        offsets, certain_,
    )
    advance(memory.pending, memory.parity, slots, torch.tensor([a for *_, a in rows]).int())
    for row, (sequence, certain, _, accepted) in enumerate(rows):
        found = out[int(offsets[row]) :][: certain + accepted]
        torch.testing.assert_close(found, sequence.expected[sequence.done :][: certain + accepted], atol=1e-12, rtol=0)
        sequence.done += certain + accepted
        memory.forget(sequence.slot)


def fold_step(memory: Memory, source: int, target: int) -> None:
    """A checkpoint, or preemption: the slot's accepted drafts join its state."""
    fold(
        memory.tails, memory.states, memory.ring, memory.parity, torch.tensor([source]), memory.pending[source : source + 1],
        torch.tensor([target]),
    )
    memory.pending[target] = 0
    memory.forget(target)


def prefill_step(memory: Memory, weights: MixWeights, sequence: Sequence, tokens: int) -> None:
    """A long chunk goes through the plain operation, once what is pending is folded."""
    fold_step(memory, sequence.slot, sequence.slot)
    part = slice(sequence.done, sequence.done + tokens)
    rows = PackedRows((tokens,), torch.device("cpu"))
    out = gated_delta_mix(
        sequence.qkvz[part], sequence.ab[part], weights, memory.tails, memory.states, torch.tensor([sequence.slot]), rows
    )
    torch.testing.assert_close(out, sequence.expected[part], atol=1e-12, rtol=0)
    sequence.done += tokens


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_any_course_of_steps_equals_plain_decoding(seed: int, count: int) -> None:
    rng, choose = torch.Generator().manual_seed(seed), random.Random(seed)
    weights, memory = make_weights(rng), Memory.empty()
    free = list(range(SLOTS))
    choose.shuffle(free)
    sequences = [make_sequence(rng, weights, free.pop()) for _ in range(count)]
    for sequence in sequences:
        memory.clear(sequence.slot)
    while any(sequence.done < STREAM for sequence in sequences):
        rows = []
        for sequence in sequences:
            left = STREAM - sequence.done
            event = choose.random()
            if event < 0.15:  # moved to another slot, as a checkpoint is
                target = free.pop()
                fold_step(memory, sequence.slot, target)
                free.insert(0, sequence.slot)
                sequence.slot = target
            elif event < 0.25:
                fold_step(memory, sequence.slot, sequence.slot)
            elif event < 0.35 and left:
                prefill_step(memory, weights, sequence, choose.randint(1, min(left, 20)))
            elif left:
                certain = min(left, choose.choice((1, 1, 1, choose.randint(1, MAX_TOKENS))))
                drafts = choose.randint(0, min(DEPTH, MAX_TOKENS - certain))
                rows.append((sequence, certain, drafts, choose.randint(0, min(drafts, left - certain))))
        if rows:
            verify_step(memory, weights, rows, rng)


def test_the_test_notices_a_step_that_forgets_what_is_pending() -> None:
    rng = torch.Generator().manual_seed(1)
    weights, memory = make_weights(rng), Memory.empty()
    sequence = make_sequence(rng, weights, 0)
    memory.clear(0)
    verify_step(memory, weights, [(sequence, 1, 4, 3)], rng)
    memory.pending[0] = 2
    with pytest.raises(AssertionError):
        verify_step(memory, weights, [(sequence, 1, 0, 0)], rng)


def folded_first(op: ModuleType, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """A case's outputs where every slot is folded in place before its step."""
    ring = Ring(*(inputs[name] for name in ("keys", "deltas", "decays", "ring_inputs")))
    slots = inputs["slots"]
    op.fold(inputs["tails"], inputs["states"], ring, inputs["parity"], slots, inputs["pending"][slots], slots)
    inputs["pending"].zero_()
    return cases.run(op, inputs)


def check_bits(op: ModuleType, case: cases.Case, dtype: torch.dtype, state_dtype: torch.dtype, device: str) -> None:
    """fold, then a step: the bits of the step alone. And what was rejected leaves no trace, be it NaN or a number."""
    given = cases.inputs(case, dtype) | {}
    given["states"] = given["states"].to(state_dtype)
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in given.items()}
    alone = cases.run(op, copy.deepcopy(given))
    others = {name: torch.nan_to_num(x, nan=3.0) if name in RINGS else x for name, x in copy.deepcopy(given).items()}
    for changed in (folded_first(op, copy.deepcopy(given)), cases.run(op, others)):
        for got, want in zip(changed, alone, strict=True):
            written = ~want.isnan()
            assert torch.equal(got[written], want[written])


RINGS = ("keys", "deltas", "decays", "ring_inputs")
BIT_CASES = [c for c in cases.CASES if c.name in ("verify", "uneven", "wide-heads")]


@pytest.mark.parametrize("state_dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", BIT_CASES, ids=lambda c: c.name)
def test_reference_folds_to_the_same_bits(case: cases.Case, state_dtype: torch.dtype) -> None:
    check_bits(reference, case, torch.float16, state_dtype, "cpu")


@pytest.mark.interpreted
@pytest.mark.parametrize("case", BIT_CASES[1:], ids=lambda c: c.name)
def test_interpreted_kernel_folds_to_the_same_bits(case: cases.Case) -> None:
    from headrace.kernels.gated_delta_verify import triton

    check_bits(triton, case, torch.float16, torch.float16, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("state_dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", BIT_CASES, ids=lambda c: c.name)
def test_compiled_kernel_folds_to_the_same_bits(case: cases.Case, dtype: torch.dtype, state_dtype: torch.dtype) -> None:
    from headrace.kernels.gated_delta_verify import triton

    check_bits(triton, case, dtype, state_dtype, "cuda")
