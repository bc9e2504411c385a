"""The definition of a draw: one row at a time, over the whole vocabulary, straight from the formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sample.noise import gumbel, row_keys, uniform
from headrace.kernels.sample.odds import ACCEPTING, ODDS, RESIDUAL, Against, Odds
from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_SHIFT, IN_PROMPT, SlotState


def sample(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, against: Against | None = None
) -> Tensor:
    """One token for each row: logits [R, V], slots and positions [R] -> [R] int64."""
    found = []
    for row, (x, slot, position) in enumerate(zip(logits, slots.tolist(), positions, strict=True)):
        place = -1 if against is None else int(against.places[row])
        if against is not None and place >= 0 and against.odds.counts[slot, place] > 0 and is_exact(x, state, slot):
            q = odds_of(against.odds, slot, place, len(x))
            found.append(_decided(x, state, slot, position, int(against.drafts[row]), q))
        else:
            found.append(_sample_row(x, state, slot, position))
    return torch.stack(found)


def probabilities(logits: Tensor, state: SlotState, slot: int) -> Tensor:
    """What a row with a temperature draws from: logits [V] -> [V] float64."""
    return _scores(adjusted(logits, state, slot), state, slot).double().softmax(-1)


def odds_of(odds: Odds, slot: int, place: int, vocab: int) -> Tensor:
    """q [V] float64 of a draft whose odds are known."""
    count = int(odds.counts[slot, place])
    ids, chances = odds.ids[slot, place, :count].long(), odds.chances[slot, place, :count].double()
    return torch.zeros(vocab, dtype=torch.float64).index_add(0, ids[ids >= 0], chances[ids >= 0])


def is_exact(logits: Tensor, state: SlotState, slot: int) -> bool:
    """Whether a row's draft is accepted by its odds: what top_k and top_p keep is all, or ODDS tokens at most."""
    top_k, top_p = int(state.integers[slot, 1]), float(state.numbers[slot, 1])
    if top_k or top_p == 1:
        return top_k <= ODDS
    x = adjusted(logits, state, slot).sort(descending=True).values
    mass = ((x - x[0]) / state.numbers[slot, 0].to(x.dtype)).double().exp()
    return bool(mass[:ODDS].sum() >= top_p * mass.sum())


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


def _decided(logits: Tensor, state: SlotState, slot: int, position: Tensor, draft: int, q: Tensor) -> Tensor:
    """The draft with probability min(1, p / q), or what is drawn from max(p - q, 0). q [V] float64."""
    p, tokens = probabilities(logits, state, slot), torch.arange(len(logits))
    accepting, residual = (row_keys(state.integers[slot, :1] + salt, position[None]) for salt in (ACCEPTING, RESIDUAL))
    left, fell = (p - q).clamp(min=0), uniform(accepting, tokens[:1], logits.dtype)[0, 0]
    if fell * q[draft] < p[draft] or not left.any():
        return torch.tensor(draft)
    return (left.log().to(logits.dtype) + gumbel(residual, tokens, logits.dtype)[0]).argmax()


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
