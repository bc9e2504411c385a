"""Drafts drawn from a known distribution q: drawn so, and verified against the target's p, by PyTorch's operations.

A draft d is accepted with probability min(1, p(d) / q(d)); otherwise the token is drawn from max(p - q, 0), normalised
(Leviathan et al. 2023; Chen et al. 2023). So it is distributed as p, and is the draft as often as any rule can make it:
sum min(p, q). The uniform that accepts and the Gumbel noise of what is drawn instead have keys of their own.

Rows whose p cannot be told without ranking more than ODDS tokens have the token drawn by `sample`, which is the draft or is
not: those with a larger top_k, and those of a nucleus (top_p without top_k) that has more tokens. Their noise is the draft's.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headrace.kernels.sample.draw import best_token, kept_masses, masses_of
from headrace.kernels.sample.noise import gumbel, row_keys, uniform
from headrace.kernels.sample.odds import ACCEPTING, ODDS, RESIDUAL, Against
from headrace.kernels.sample.ranking import gpu_block_rows, ranked
from headrace.kernels.sample.slots import RowParams


def draw_among(scores: Tensor, tokens: Tensor, params: RowParams, positions: Tensor) -> tuple[Tensor, Tensor]:
    """From what temperature, top_k, top_p and min_p make of scores [R, C] of tokens [R, C]: drawn [R], and the tokens'
    probabilities [R, C] float64. The noise is that of `sample`.
    """
    by_id = tokens.argsort(1)
    values, order = scores.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    ranks = by_id.gather(1, order)
    masses = kept_masses(values, params)
    noise = gumbel(row_keys(params.seed, positions), tokens.gather(1, ranks), scores.dtype)
    found = ((values - values[:, :1]) / params.temperature[:, None] + noise).masked_fill(masses == 0, float("-inf"))
    chances = torch.zeros_like(masses).scatter_(1, ranks, masses / masses.sum(1, keepdim=True))
    return best_token(found, tokens.gather(1, ranks)), chances


def decided(
    logits: Tensor, params: RowParams, slots: Tensor, positions: Tensor, drawn: Tensor, against: Against
) -> Tensor:
    """drawn [R], where a draft's odds are known with the draft, or what is drawn instead. logits [R, V]: adjusted."""
    odds, places = against.odds, against.places.clamp(min=0)
    counts = torch.where(against.places >= 0, odds.counts[slots, places], 0)
    known, decided_ = (counts > 0) & (params.top_k <= ODDS), drawn.clone()
    for rows in _blocks(known, logits):
        ids, chances = (kept[slots[rows], places[rows]] for kept in (odds.ids, odds.chances))  # [n, ODDS]
        there = (torch.arange(ODDS, device=ids.device) < counts[rows, None]) & (ids >= 0)
        q = torch.zeros(len(rows), logits.shape[1], dtype=torch.float64, device=logits.device)
        q.scatter_add_(1, ids.clamp(min=0).long(), torch.where(there, chances, 0).double())
        found, exact = _decided(logits[rows], params.take(rows), positions[rows], against.drafts[rows], q)
        decided_[rows] = torch.where(known[rows] & exact, found, drawn[rows])
    return decided_


def _blocks(known: Tensor, logits: Tensor) -> Iterator[Tensor]:
    """Row numbers, a bounded number at a time: those that are known, or, where a look at that would wait for a GPU, all."""
    if logits.is_cuda:
        yield from torch.split(torch.arange(len(known), device=known.device), gpu_block_rows(logits.shape[1]))
    elif known.any():
        yield known.nonzero()[:, 0]


def _decided(x: Tensor, params: RowParams, positions: Tensor, drafts: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [R], and for which rows [R] they are right. x [R, V]; q [R, V] float64: what drafts [R] were drawn from."""
    p, exact = _kept(x, params)
    total, tokens = p.sum(1), torch.arange(x.shape[1], device=x.device)

    def of_draft(values: Tensor) -> Tensor:
        return values.gather(1, drafts[:, None])[:, 0]

    fell = uniform(row_keys(params.seed + ACCEPTING, positions), tokens[:1], x.dtype)[:, 0]
    accepted = fell * of_draft(q) * total < of_draft(p)
    left = p - q * total[:, None]
    noise = gumbel(row_keys(params.seed + RESIDUAL, positions), tokens, x.dtype)
    instead = torch.where(left > 0, left.to(x.dtype).log() + noise, float("-inf")).argmax(1)
    # Where rounding leaves nothing the two are equal.
    nothing = torch.where(of_draft(p) > 0, drafts, x.argmax(1))
    instead = torch.where((left > 0).any(1), instead, nothing)
    return torch.where(accepted, drafts, instead), exact


def _kept(x: Tensor, params: RowParams) -> tuple[Tensor, Tensor]:
    """Masses [R, V] float64 of what is kept, and for which rows [R] ODDS tokens tell it."""
    values, tokens = ranked(x, x.shape[1])
    masses = masses_of(values, params)
    nucleus = (params.top_k == 0) & (params.top_p < 1)
    exact = ~nucleus | (masses[:, :ODDS].sum(1) >= params.top_p * masses.sum(1))
    return torch.zeros_like(masses).scatter_(1, tokens, kept_masses(values, params)), exact
