"""Draws against exact probabilities: chi-square over 40,000 positions, with samplers that are wrong as a control."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from headrace.kernels.sample import Features, SlotState, sample

DRAWS = 40_000
LOGITS = (2.0, 1.1, 1.1, 0.3, -0.4, -1.0, -1.0, -1.6, -2.0, -2.4)


@dataclass(frozen=True)
class Settings:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def probabilities(self) -> list[float]:
        """Exact, in plain floats: temperature, top_k, top_p, min_p."""
        weights = [math.exp(x / self.temperature) for x in LOGITS]
        order = sorted(range(len(LOGITS)), key=lambda t: (-LOGITS[t], t))[: self.top_k or None]
        total, kept, mass = sum(weights[t] for t in order), [], 0.0
        for token in order:
            if mass < self.top_p * total and weights[token] >= self.min_p * weights[order[0]]:
                kept.append(token)
            mass += weights[token]
        total = sum(weights[t] for t in kept)
        return [weights[t] / total if t in kept else 0.0 for t in range(len(LOGITS))]

    def draw(self, dtype: torch.dtype, seed: int = 1, vocab_size: int = len(LOGITS)) -> list[int]:
        """Tokens of DRAWS positions under one seed; the vocabulary is filled up with impossible tokens."""
        logits = torch.full((vocab_size,), float("-inf"), dtype=dtype)
        logits[: len(LOGITS)] = torch.tensor(LOGITS)
        state = SlotState.allocate(1, vocab_size, torch.device("cpu"))
        state.integers[0] = torch.tensor([seed, self.top_k, 0, 0])
        numbers = [self.temperature, self.top_p, self.min_p, 0, 0, 1]
        state.numbers[0] = torch.tensor(numbers, dtype=torch.float64)
        features = [Features(greedy=False, top_k=self.top_k, nucleus=self.top_p < 1)] * DRAWS
        slots = torch.zeros(DRAWS, dtype=torch.int64)
        return sample(logits.expand(DRAWS, -1), state, slots, torch.arange(DRAWS), features).tolist()


SETTINGS = [
    Settings(),
    Settings(temperature=0.6),
    Settings(temperature=100.0),
    Settings(top_k=2),
    Settings(top_k=6, temperature=1.5),
    Settings(top_p=0.8),
    Settings(min_p=0.1),
    Settings(temperature=1.3, top_k=8, top_p=0.9, min_p=0.06),
]


def _fits(tokens: list[int], probabilities: list[float]) -> bool:
    """Chi-square of the counts, at a false-failure rate of 1e-7 (Wilson-Hilferty: z = 5.2); impossible tokens never fit."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).tolist()
    possible = [(n, p * len(tokens)) for n, p in zip(counts, probabilities, strict=True) if p > 0]
    if sum(n for n, _ in possible) < len(tokens):
        return False
    assert all(expected >= 5 for _, expected in possible)
    freedom = len(possible) - 1
    chi2 = sum((n - expected) ** 2 / expected for n, expected in possible)
    spread = 2 / (9 * freedom)
    return chi2 < freedom * (1 - spread + 5.2 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [1, -(2**63)])
def test_draws_follow_the_exact_probabilities(settings: Settings, dtype: torch.dtype, seed: int) -> None:
    assert _fits(settings.draw(dtype, seed), settings.probabilities())


@pytest.mark.parametrize(
    ("real", "claimed"),
    [
        (Settings(temperature=1.05), Settings()),
        (Settings(), Settings(temperature=0.95)),
        (Settings(top_k=7), Settings()),
        (Settings(), Settings(top_k=9)),
        (Settings(top_p=0.95), Settings(top_p=0.9)),
        (Settings(min_p=0.02), Settings(min_p=0.06)),
    ],
    ids=str,
)
def test_the_test_notices_a_wrong_sampler(real: Settings, claimed: Settings) -> None:
    assert not _fits(real.draw(torch.float32), claimed.probabilities())


def test_the_test_notices_noise_that_repeats() -> None:
    """1,000 draws, each counted forty times."""
    assert not _fits(Settings().draw(torch.float32)[: DRAWS // 40] * 40, Settings().probabilities())


def test_rare_tokens_in_a_large_vocabulary_keep_their_share() -> None:
    """In float32: one token at half of the mass, the rest spread thinly, 2e-6 each, over a quarter of a million."""
    vocab_size, draws = 250_000, 300
    logits = torch.zeros(draws, vocab_size)
    logits[:, 77] = math.log(vocab_size - 1)
    state = SlotState.allocate(1, vocab_size, torch.device("cpu"))
    state.numbers[0] = torch.tensor([1.0, 1.0, 0, 0, 0, 1], dtype=torch.float64)
    slots = torch.zeros(draws, dtype=torch.int64)
    drawn = sample(logits, state, slots, torch.arange(draws), [Features(greedy=False)] * draws)
    hits = int((drawn == 77).sum())
    assert abs(hits - draws / 2) < 5.2 * math.sqrt(draws / 4)
    others = drawn[drawn != 77]
    assert len(others.unique()) >= len(others) - 3
    assert abs(float(others.double().mean()) / vocab_size - 0.5) < 5.2 * math.sqrt(1 / 12 / len(others))


def test_seeds_differ_and_repeat() -> None:
    one, again, other = (Settings().draw(torch.float32, seed) for seed in (5, 5, 6))
    assert one == again
    same = sum(a == b for a, b in zip(one, other, strict=True)) / DRAWS
    by_chance = sum(p * p for p in Settings().probabilities())
    assert abs(same - by_chance) < 5.2 * math.sqrt(by_chance / DRAWS)


def test_the_ways_of_drawing_agree() -> None:
    """Restrictions that remove nothing, and room in the vocabulary, leave each token as it was drawn."""
    plain = Settings().draw(torch.float64)
    assert replace(Settings(), top_k=len(LOGITS)).draw(torch.float64) == plain
    assert replace(Settings(), top_p=1 - 1e-12).draw(torch.float64) == plain
    assert replace(Settings(), top_k=len(LOGITS)).draw(torch.float64, vocab_size=300) == plain
