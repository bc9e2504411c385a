"""Inputs on which every way of drawing must give the reference's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.sample.slots import Features, SlotState
from headrace.types import MAX_LOGIT_BIAS


@dataclass(frozen=True, slots=True)
class Case:
    """One batch: the arguments of `sample`, R rows in R of S slots."""

    name: str
    logits: Tensor  # [R, V]
    state: SlotState
    slots: Tensor  # [R]
    positions: Tensor  # [R]
    features: tuple[Features, ...]


# What a row's parameters are picked from; the first of each is off.
_TEMPERATURES = (0.0, 1.0, 0.7, 1e-5, 100.0)
_TOP_KS = (0, 1, 3, 20)
_TOP_PS = (1.0, 0.95, 0.5, 1e-6)
_MIN_PS = (0.0, 0.02, 0.5, 1.0)
_PENALTIES = ((0.0, 0.0, 1.0), (1.5, 0.0, 1.0), (0.0, -0.7, 1.0), (0.3, 0.2, 1.3), (0.0, 0.0, 0.5))
_BIASES = (0, 1, 7, MAX_LOGIT_BIAS)


def cases() -> Iterator[Case]:
    """Vocabularies around the sizes at which the ways of drawing change, with and without equal logits, in both types."""
    for vocab_size in (1, 2, 33, 1023, 1025, 5000):
        for dtype in (torch.float32, torch.float64):
            for step in (0.0, 0.5):
                yield _case(vocab_size, dtype, step)


def _case(vocab_size: int, dtype: torch.dtype, step: float, rows: int = 24) -> Case:
    """Random rows; `step` above 0 rounds the logits to its multiples, so that many are equal."""
    rng = torch.Generator().manual_seed(vocab_size * 4 + (dtype == torch.float64) * 2 + (step > 0))
    logits = torch.randn(rows, vocab_size, generator=rng, dtype=torch.float64) * 4
    logits = (logits / step).round() * step if step else logits
    state = SlotState.allocate(rows + 2, vocab_size, torch.device("cpu"))
    slots = torch.randperm(rows + 2, generator=rng)[:rows]
    features = tuple(_fill(state, slot, vocab_size, rng) for slot in slots.tolist())
    positions = torch.randint(0, 2**20, (rows,), generator=rng)
    return Case(f"V{vocab_size}-{str(dtype)[6:]}-step{step}", logits.to(dtype), state, slots, positions, features)


def _fill(state: SlotState, slot: int, vocab_size: int, rng: torch.Generator) -> Features:
    def pick(count: int) -> int:
        return int(torch.randint(0, count, (1,), generator=rng))

    temperature, top_k = _TEMPERATURES[pick(5)], min(_TOP_KS[pick(4)], vocab_size)
    top_p, min_p, penalties = _TOP_PS[pick(4)], _MIN_PS[pick(4)], _PENALTIES[pick(5)]
    min_tokens, generated = pick(4), pick(4)
    state.integers[slot] = torch.tensor([pick(2**31) * 2**32 - 2**62, top_k, min_tokens, generated])
    state.numbers[slot] = torch.tensor([temperature, top_p, min_p, *penalties], dtype=torch.float64)
    entries = min(_BIASES[pick(4)], vocab_size)
    state.bias_tokens[slot, :entries] = torch.randperm(vocab_size, generator=rng)[:entries]
    state.bias_values[slot, :entries] = torch.rand(entries, generator=rng, dtype=torch.float64) * 200 - 100
    state.marks[slot] = torch.randint(0, 16, (vocab_size,), generator=rng, dtype=torch.int32)
    penalised, held_open = penalties != _PENALTIES[0], generated < min_tokens
    return Features(temperature == 0, top_k, top_p < 1, entries, penalised, held_open)
