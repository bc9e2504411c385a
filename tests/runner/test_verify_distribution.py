"""Drafter and verification together: the joint distribution of three tokens is the target's, exactly, whatever was drafted.

20,000 sequences over 8 tokens, a drafter far from the target, 0 to 3 drafts a row in one batch; verifications that are wrong as
a control.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.sample import Features, SlotState
from headrace.kernels.sample.reference import probabilities
from headrace.kernels.sample.slots import GENERATED_ONCE
from headrace.runner.coin import Coin
from headrace.runner.draft_batch import Runs
from headrace.runner.draft_draw import DraftDraw
from headrace.runner.sampler import Sampler
from headrace.runner.verify import Verifier

VOCAB, SLOTS, PASSES, LENGTH, START = 8, 500, 40, 3, 0
_RNG = torch.Generator().manual_seed(7)
TARGET, DRAFTER = (1.5 * torch.randn(2, VOCAB, VOCAB, generator=_RNG, dtype=torch.float64)).unbind()  # by the token before
CPU = torch.device("cpu")
Joint = Counter[tuple[int, ...]]


@dataclass(frozen=True)
class Options:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0

    @property
    def features(self) -> Features:
        penalised = (self.presence, self.frequency, self.repetition) != (0, 0, 1)
        return Features(greedy=False, top_k=self.top_k, nucleus=self.top_p < 1, penalised=penalised)

    def put(self, state: SlotState) -> None:
        numbers = (self.temperature, self.top_p, self.min_p, self.presence, self.frequency, self.repetition)
        state.numbers[:] = torch.tensor(numbers, dtype=torch.float64)
        state.integers[:, 1] = self.top_k

    def joint(self) -> dict[tuple[int, ...], float]:
        """Of three tokens behind the first, each drawn from what its predecessors make of the target's logits."""
        state, found = SlotState.allocate(1, VOCAB, CPU), {(): 1.0}
        self.put(state)
        for length in range(LENGTH):
            longer = {}
            for tokens, chance in found.items():
                state.marks[0] = GENERATED_ONCE * torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=VOCAB).int()
                state.integers[0, 3] = length
                following = probabilities(TARGET[tokens[-1] if tokens else START], state, 0)
                longer |= {(*tokens, token): chance * float(p) for token, p in enumerate(following)}
            found = longer
        return found


OPTIONS = (
    Options(), Options(0.3), Options(0.7), Options(1.5), Options(top_k=3), Options(top_p=0.8), Options(min_p=0.15),
    Options(1.3, 6, 0.9, 0.02), Options(presence=0.9, frequency=0.6), Options(0.7, 5, repetition=1.6),
)


class Sequences:
    """SLOTS sequences at a time, each in a slot of its own under a seed of its own. chance: a coin accepts instead."""

    def __init__(self, options: Options, *, chance: float | None = None, still: bool = False) -> None:
        self.sampler = Sampler(SLOTS + 1, VOCAB, CPU, torch.float64)
        options.put(self.sampler.state)
        self.sampler._features = [options.features] * (SLOTS + 1)
        state = self.sampler.state
        zeros = torch.zeros(SLOTS + 1, dtype=torch.int64)
        self.slots = DraftSlots(
            zeros.clone(), zeros + 1000, zeros.bool(), zeros.int(), zeros.int(), self.sampler.next_tokens, state.integers,
            state.marks,
        )
        coin = None if chance is None else Coin(state, chance)
        self.verifier, self._still, self._turn = Verifier(lambda hidden: hidden, self.sampler, self.slots, coin), still, 0

    def draw(self) -> Joint:
        found: Joint = Counter()
        for number in range(PASSES):
            self.sampler.state.integers[:, 0] = torch.arange(SLOTS + 1) + number * SLOTS
            self.sampler.state.integers[:, 3] = 0
            self.sampler.state.marks.zero_()
            self.slots.positions.zero_()
            self.slots.next_tokens.fill_(START)
            outputs: list[list[int]] = [[] for _ in range(SLOTS)]
            while any(len(output) < LENGTH for output in outputs):
                for output, (tokens, _) in zip(outputs, self._step(), strict=True):
                    output += tokens
            found.update(tuple(output[:LENGTH]) for output in outputs)
        return found

    def _step(self) -> list[tuple[tuple[int, ...], tuple[object, ...]]]:
        self._turn += 1
        rows, counts = torch.arange(SLOTS), (torch.arange(SLOTS) + self._turn) % 4
        starts, tokens = self.slots.positions[:SLOTS].clone(), [self.slots.next_tokens[:SLOTS].clone()]
        draw = DraftDraw(self.sampler, rows, starts)
        for place in range(3):
            tokens.append(draw(DRAFTER[tokens[-1]], place))
        runs = self._runs(torch.stack(tokens, 1), counts, starts)
        return list(self.verifier.draw(runs, TARGET[runs.tokens], deferred=False).results())

    def _runs(self, tokens: Tensor, counts: Tensor, starts: Tensor) -> Runs:
        """tokens [S, 4], of which each row has one more than its drafts."""
        widths = counts + 1
        begins, owner = (widths.cumsum(0) - widths), torch.arange(SLOTS).repeat_interleave(widths)
        within = torch.arange(len(owner)) - begins[owner]
        flat = tokens[owner, within]
        drawn_at = torch.zeros_like(owner) if self._still else starts[owner] + within + 1
        names = tuple(range(SLOTS))
        return Runs(
            flat, begins.int(), counts, torch.arange(SLOTS), starts, begins.int(), None, owner, drawn_at, names,
            tuple(owner.tolist()), tuple(begins.tolist()), 4,
        )


def fits(found: Joint, expected: dict[tuple[int, ...], float]) -> bool:
    """Chi-square at a false-failure rate of 1e-8 (Wilson-Hilferty: z = 5.6), of bins merged until each expects five or more."""
    draws = found.total()
    if any(expected.get(tokens, 0.0) <= 0 for tokens in found):
        return False
    bins, seen, due = [], 0, 0.0
    for tokens, chance in sorted(expected.items(), key=lambda item: item[1]):
        seen, due = seen + found[tokens], due + chance * draws
        if due >= 5:
            bins.append((seen, due))
            seen, due = 0, 0.0
    bins[-1] = (bins[-1][0] + seen, bins[-1][1] + due)
    freedom = len(bins) - 1
    chi2 = sum((n - e) ** 2 / e for n, e in bins)
    spread = 2 / (9 * freedom)
    return chi2 < freedom * (1 - spread + 5.6 * math.sqrt(spread)) ** 3


def test_the_drafter_is_far_from_the_target() -> None:
    apart = (TARGET.softmax(1) - DRAFTER.softmax(1)).abs().sum(1) / 2
    assert float(apart.min()) >= 0.3
    assert sum(Options().joint().values()) == pytest.approx(1) and len(Options().joint()) == VOCAB**LENGTH


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_three_tokens_follow_the_exact_probabilities(options: Options) -> None:
    found = Sequences(options).draw()
    assert found.total() == SLOTS * PASSES and fits(found, options.joint())


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
def test_a_temperature_that_is_applied_twice_is_noticed(temperature: float) -> None:
    assert not fits(Sequences(Options(temperature**2)).draw(), Options(temperature).joint())


@pytest.mark.parametrize("chance", [0.3, 1.0])
def test_drafts_that_pass_without_the_target_are_noticed(chance: float) -> None:
    assert not fits(Sequences(Options(), chance=chance).draw(), Options().joint())


def test_noise_that_repeats_at_the_next_place_is_noticed() -> None:
    assert not fits(Sequences(Options(), still=True).draw(), Options().joint())


def test_penalties_that_do_not_count_drafts_before_are_noticed() -> None:
    counted, not_counted = Options(presence=0.9, frequency=0.6), Options()
    assert not fits(Sequences(not_counted).draw(), counted.joint())


def test_every_bin_is_an_order_of_tokens() -> None:
    assert set(Options().joint()) == set(itertools.product(range(VOCAB), repeat=LENGTH))
