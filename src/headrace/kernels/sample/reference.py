"""The definition of a draw: one row at a time, over the whole vocabulary, straight from the formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sample.noise import gumbel, row_keys
from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_SHIFT, IN_PROMPT, SlotState


def sample(logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor) -> Tensor:
    """One token for each row: logits [R, V], slots and positions [R] -> [R] int64."""
    rows = zip(logits, slots.tolist(), positions, strict=True)
    return torch.stack([_sample_row(x, state, slot, position) for x, slot, position in rows])


def probabilities(logits: Tensor, state: SlotState, slot: int) -> Tensor:
    """What a row with a temperature draws from: logits [V] -> [V] float64."""
    return _scores(adjusted(logits, state, slot), state, slot).double().softmax(-1)


def adjusted(logits: Tensor, state: SlotState, slot: int) -> Tensor:
    """The row's logits [V] after logit_bias, penalties and min_tokens."""
    _, _, min_tokens, generated = state.integers[slot].tolist()
    *_, presence, frequency, repetition = state.numbers[slot].to(logits.dtype)
    marks = state.marks[slot]
    counts = (marks >> GENERATED_SHIFT).to(logits.dtype)
    x: Tensor = logits.index_add(0, state.bias_tokens[slot], state.bias_values[slot].to(logits.dtype))
    seen = ((marks & IN_PROMPT) > 0) | (counts > 0)
    x = torch.where(seen & (x > 0), x / repetition, torch.where(seen, x * repetition, x))
    x = x - (counts > 0) * presence - counts * frequency
    ends = (marks & ENDS_MESSAGE) > 0
    return x.masked_fill(ends, float("-inf")) if generated < min_tokens else x


def _sample_row(logits: Tensor, state: SlotState, slot: int, position: Tensor) -> Tensor:
    x = adjusted(logits, state, slot)
    if state.numbers[slot, 0] == 0:
        return x.argmax()
    tokens = torch.arange(len(x), device=x.device)
    noise = gumbel(row_keys(state.integers[slot, :1], position[None]), tokens, x.dtype)[0]
    return (_scores(x, state, slot) + noise).argmax()


def _scores(x: Tensor, state: SlotState, slot: int) -> Tensor:
    """Adjusted logits [V] below the best, over the temperature; -inf where top_k, top_p or min_p removed the token."""
    top_k = int(state.integers[slot, 1]) or len(x)
    temperature, _, min_p, *_ = state.numbers[slot].to(x.dtype)
    top_p = float(state.numbers[slot, 1])
    scaled = (x - x.max()) / temperature
    order = x.argsort(descending=True, stable=True)[:top_k]
    mass = scaled[order].double().exp()
    if top_p < 1:
        before = mass.cumsum(0) - mass
        order = order[before < top_p * mass.sum()]
    order = order[scaled[order] >= min_p.log()]
    scores = torch.full_like(x, float("-inf"))
    scores[order] = scaled[order]
    return scores
