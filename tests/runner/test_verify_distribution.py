"""Drafter and verification together: the joint distribution of three tokens is the target's, exactly, whatever was drafted.

20,000 sequences over 8 tokens, a drafter far from the target, 0 to 3 drafts a row in one batch; verifications that are wrong as
a control. Both ways to verify: by the target's own draw (sequences with a seed), and by what drafts were drawn from (free
ones). With a mask of the tokens that may follow, which drafts know nothing of, and without.
Every test here that can fail by chance does at most once in 10^8 times, or twice.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.forbid_tokens import TokenMasks
from headrace.kernels.sample import Features, Odds, SlotState, accept, sample
from headrace.kernels.sample.noise import gumbel, row_keys, uniform
from headrace.kernels.sample.odds import ACCEPTING, RESIDUAL
from headrace.kernels.sample.reference import probabilities
from headrace.kernels.sample.slots import GENERATED_ONCE, RowParams
from headrace.runner.allowed import AllowedTokens
from headrace.runner.coin import Coin
from headrace.runner.draft_batch import Runs
from headrace.runner.draft_draw import DraftDraw
from headrace.runner.sampler import Sampler
from headrace.runner.verify import Verifier

VOCAB, SLOTS, PASSES, LENGTH, START, MOST = 8, 500, 40, 3, 0, 3
_RNG = torch.Generator().manual_seed(7)
TARGET, DRAFTER = (1.5 * torch.randn(2, VOCAB, VOCAB, generator=_RNG, dtype=torch.float64)).unbind()  # by the token before
ALLOWED = torch.rand(VOCAB, VOCAB, generator=_RNG) < 0.5  # by the token before, which may follow itself
ALLOWED |= torch.eye(VOCAB, dtype=torch.bool)
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
    masked: bool = False

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
                before = tokens[-1] if tokens else START
                gone = ~ALLOWED[before] if self.masked else torch.zeros(VOCAB, dtype=torch.bool)
                following = probabilities(TARGET[before].masked_fill(gone, float("-inf")), state, 0)
                longer |= {(*tokens, token): chance * float(p) for token, p in enumerate(following)}
            found = longer
        return found


OPTIONS = (
    Options(), Options(0.3), Options(0.7), Options(1.5), Options(top_k=3), Options(top_p=0.8), Options(min_p=0.15),
    Options(1.3, 6, 0.9, 0.02), Options(presence=0.9, frequency=0.6), Options(0.7, 5, repetition=1.6),
)
MASKED = tuple(replace(options, masked=True) for options in (OPTIONS[1], *OPTIONS[3:6], *OPTIONS[7:9]))


class Sequences:
    """SLOTS sequences at a time, each in a slot of its own under a seed of its own. chance: a coin accepts instead. free: every
    so many sequences are, none if 0. masses: drafts from this one on are the drafter's likeliest tokens. heat: temperatures
    that drafts are really drawn at, as multiples of those that their odds are told for. places: so many of a row have masks.
    """

    def __init__(
        self, options: Options, *, chance: float | None = None, still: bool = False, free: int = 0, masses: int = MOST,
        heat: float = 1.0, places: int = MOST + 1,
    ) -> None:
        self._allowed = AllowedTokens(lambda request: None, SLOTS + 1, MOST + 1, VOCAB, CPU) if options.masked else None
        self._places = places
        self.sampler = Sampler(SLOTS + 1, VOCAB, CPU, torch.float64, allowed=self._allowed)
        options.put(self.sampler.state)
        for slot in range(SLOTS + 1):
            self.sampler._set_features(slot, options.features)
        state = self.sampler.state
        zeros = torch.zeros(SLOTS + 1, dtype=torch.int64)
        self.slots = DraftSlots(
            zeros.clone(), zeros + 1000, zeros.bool(), zeros.int(), zeros.int(), self.sampler.next_tokens, state.integers,
            state.marks,
        )
        coin = None if chance is None else Coin(state, chance)
        self.odds = Odds.allocate(SLOTS + 1, MOST, CPU)
        self.odds.free[:SLOTS] = torch.arange(SLOTS) % free == 0 if free else False
        self.verifier = Verifier(lambda hidden: hidden, self.sampler, self.slots, coin, self.odds if free else None)
        self._still, self._masses, self._heat, self._turn = still, masses, heat, 0
        self.firsts = self.accepted = 0  # first drafts behind START, and those that were accepted

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
        counts = (torch.arange(SLOTS) + self._turn) % (MOST + 1)
        starts, tokens = self.slots.positions[:SLOTS].clone(), [self.slots.next_tokens[:SLOTS].clone()]
        for place in range(MOST):
            tokens.append(self._draft(DRAFTER[tokens[-1]], starts, place))
        runs = self._runs(torch.stack(tokens, 1), counts, starts)
        if self._allowed is not None:
            self._mask(self._allowed.masks, torch.stack(tokens, 1), starts)
        results = list(self.verifier.draw(runs, TARGET[runs.tokens], deferred=False).results())
        if not starts.any():
            asked = zip(results, tokens[1].tolist(), counts.tolist(), strict=True)
            kept = [found[0] == draft for (found, _), draft, count in asked if count]
            self.firsts, self.accepted = self.firsts + len(kept), self.accepted + sum(kept)
        return results

    def _mask(self, masks: TokenMasks, tokens: Tensor, starts: Tensor) -> None:
        """Of each place that of the token before it, among tokens [S, 1 + MOST]."""
        masks.words[:VOCAB, 0] = (ALLOWED.int() << torch.arange(VOCAB, dtype=torch.int32)).sum(1, dtype=torch.int32)
        masks.places[:SLOTS, 0] = starts + 1
        masks.places[:SLOTS, 1:] = -1
        masks.places[:SLOTS, 1 : 1 + self._places] = tokens[:, : self._places]

    def _draft(self, scores: Tensor, starts: Tensor, place: int) -> Tensor:
        rows, draw = torch.arange(SLOTS), DraftDraw(self.sampler, self.odds, torch.arange(SLOTS), starts)
        if place >= self._masses:
            return scores.argmax(1)
        if self._heat == 1:
            return draw(scores, place)
        drafts = draw(scores / self._heat, place)
        told = self.odds
        self.odds = Odds.allocate(SLOTS + 1, MOST, CPU)
        self.odds.free.copy_(told.free)
        DraftDraw(self.sampler, self.odds, rows, starts)(scores, place)
        for ours, theirs in ((told.ids, self.odds.ids), (told.chances, self.odds.chances)):
            ours[:, place] = theirs[:, place]
        self.odds = told
        return drafts

    def _runs(self, tokens: Tensor, counts: Tensor, starts: Tensor) -> Runs:
        """tokens [S, 4], of which each row has one more than its drafts."""
        widths = counts + 1
        begins, owner = (widths.cumsum(0) - widths), torch.arange(SLOTS).repeat_interleave(widths)
        within = torch.arange(len(owner)) - begins[owner]
        flat = tokens[owner, within]
        drawn_at = torch.zeros_like(owner) if self._still else starts[owner] + within + 1
        draft_of = torch.where(within < counts[owner].clamp(max=self._masses), within, -1)
        names = tuple(range(SLOTS))
        return Runs(
            flat, begins.int(), counts, torch.arange(SLOTS), starts, begins.int(), None, owner, drawn_at, draft_of, names,
            tuple(owner.tolist()), tuple(begins.tolist()), MOST + 1,
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


@cache
def drawn(options: Options, free: int, masses: int) -> tuple[Joint, Sequences]:
    sequences = Sequences(options, free=free, masses=masses)
    return sequences.draw(), sequences


@pytest.mark.parametrize("options", OPTIONS + MASKED, ids=str)
@pytest.mark.parametrize(("free", "masses"), [(0, MOST), (1, MOST), (2, 2)], ids=("seeded", "free", "mixed"))
def test_three_tokens_follow_the_exact_probabilities(options: Options, free: int, masses: int) -> None:
    """mixed: every second sequence is free, and has a point mass behind two drafts that are drawn."""
    found = drawn(options, free, masses)[0]
    assert found.total() == SLOTS * PASSES and fits(found, options.joint())


def test_masks_leave_some_of_what_drafts_are_drawn_from() -> None:
    narrow = ALLOWED.sum(1) < VOCAB
    kept = DRAFTER.softmax(1).where(ALLOWED, torch.zeros(1, dtype=torch.float64)).sum(1)[narrow]
    assert int(narrow.sum()) > VOCAB // 2 and int(ALLOWED.sum(1).min()) > 1 and bool(narrow[START])
    assert 0.02 < float(kept.min()) and float(kept.max()) < 0.98


@pytest.mark.parametrize("free", [0, 1])
def test_masks_of_first_places_alone_are_noticed(free: int) -> None:
    """Behind drafts, too, nothing may be drawn that is not allowed there."""
    options = Options(masked=True)
    assert not fits(Sequences(options, free=free, places=1).draw(), options.joint())


@pytest.mark.parametrize("free", [0, 1])
def test_tokens_that_are_replaced_where_they_are_not_allowed_are_noticed(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(self: Sampler, logits: Tensor, slots: Any, where: Tensor, positions: Tensor, against: Any = None) -> Tensor:
        found = sample(logits, self.state, where, positions, [self._features[slot] for slot in slots], against)
        self._forbid(logits, where, positions)
        gone = logits.gather(1, found[:, None])[:, 0].isneginf()
        return torch.where(gone, logits.argmax(1), found)

    monkeypatch.setattr(Sampler, "tokens_of", replaced)
    options = Options(masked=True)
    assert not fits(Sequences(options, free=free).draw(), options.joint())


@pytest.mark.parametrize("options", OPTIONS + MASKED, ids=str)
def test_drafts_are_accepted_as_often_as_the_two_agree(options: Options) -> None:
    """sum min(p, q), q with the temperature and the limits of p: none of these penalties is on yet at the first token."""
    (_, sequences), state = drawn(options, 1, MOST), SlotState.allocate(1, VOCAB, CPU)
    options.put(state)
    gone = ~ALLOWED[START] if options.masked else torch.zeros(VOCAB, dtype=torch.bool)
    p = probabilities(TARGET[START].masked_fill(gone, float("-inf")), state, 0)
    q = probabilities(DRAFTER[START], state, 0)
    chance = float(torch.minimum(p, q).sum())
    deviation = math.sqrt(chance * (1 - chance) / sequences.firsts)
    assert sequences.firsts > 14_000 and abs(sequences.accepted / sequences.firsts - chance) < 5.6 * deviation
    assert options.temperature < 1 or chance > float((p * q).sum()) + 12 * deviation  # what independent draws come to


def decision(accepting: str, instead: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Stands for `accept._decided`. accepting: "p / q", or "p", as if q were 1. instead: what a rejected draft's token is drawn
    from: "p - q", "p", or "p but the draft", as for a point mass.
    """

    def decided(x: Tensor, params: RowParams, positions: Tensor, drafts: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        p, exact = accept._kept(x, params)
        p, draft = p / p.sum(1, keepdim=True), drafts[:, None]
        fell = uniform(row_keys(params.seed + ACCEPTING, positions), torch.zeros(1, dtype=torch.int64), x.dtype)
        accepted = fell * (q.gather(1, draft) if accepting == "p / q" else 1) < p.gather(1, draft)
        left = {"p - q": (p - q).clamp(min=0), "p": p, "p but the draft": p.scatter(1, draft, 0.0)}[instead]
        noise = gumbel(row_keys(params.seed + RESIDUAL, positions), torch.arange(VOCAB), x.dtype)
        return torch.where(accepted[:, 0], drafts, (left.log() + noise).argmax(1)), exact

    return decided


@pytest.mark.parametrize(("accepting", "instead", "right"), [
    ("p / q", "p - q", True), ("p / q", "p", False), ("p / q", "p but the draft", False),
    ("p", "p - q", False), ("p", "p", False), ("p", "p but the draft", True),
])
def test_a_q_that_is_left_out_is_noticed(
    accepting: str, instead: str, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the acceptance, or of what is drawn instead (a residual that is not max(p - q, 0), normalised). Left out of both it is
    a point mass, which is right for any draft, and accepted less often.
    """
    monkeypatch.setattr(accept, "_decided", decision(accepting, instead))
    assert fits(Sequences(Options(), free=1).draw(), Options().joint()) == right


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
def test_odds_of_another_temperature_than_the_drafts_are_noticed(temperature: float) -> None:
    """Drafts drawn with the temperature twice, whose odds are told with it once."""
    options = Options(temperature)
    assert not fits(Sequences(options, free=1, heat=temperature).draw(), options.joint())


@pytest.mark.parametrize("salt", ["ACCEPTING", "RESIDUAL"])
def test_noise_that_drafts_were_drawn_with_is_noticed(salt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, salt, 0)
    assert not fits(Sequences(Options(), free=1).draw(), Options().joint())


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.5])
@pytest.mark.parametrize("free", [0, 1])
def test_a_temperature_that_is_applied_twice_is_noticed(temperature: float, free: int) -> None:
    assert not fits(Sequences(Options(temperature**2), free=free).draw(), Options(temperature).joint())


@pytest.mark.parametrize("chance", [0.3, 1.0])
def test_drafts_that_pass_without_the_target_are_noticed(chance: float) -> None:
    assert not fits(Sequences(Options(), chance=chance).draw(), Options().joint())


@pytest.mark.parametrize("free", [0, 1])
def test_noise_that_repeats_at_the_next_place_is_noticed(free: int) -> None:
    assert not fits(Sequences(Options(), still=True, free=free).draw(), Options().joint())


@pytest.mark.parametrize("free", [0, 1])
def test_penalties_that_do_not_count_drafts_before_are_noticed(free: int) -> None:
    counted, not_counted = Options(presence=0.9, frequency=0.6), Options()
    assert not fits(Sequences(not_counted, free=free).draw(), counted.joint())


def test_every_bin_is_an_order_of_tokens() -> None:
    assert set(Options().joint()) == set(itertools.product(range(VOCAB), repeat=LENGTH))
