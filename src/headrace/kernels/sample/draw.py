"""Draws from adjusted logits: greedy, from the whole vocabulary, or from the first tokens of the ranking.

All of them give the token that `reference` defines; they differ in how much of the vocabulary they look at. Each takes
logits [R, V], the rows' parameters and the positions [R] of the tokens drawn, and returns tokens [R] int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sample.noise import gumbel, row_keys
from headrace.kernels.sample.ranking import ranked
from headrace.kernels.sample.slots import RowParams

HEAD_TOKENS = 1024
"""Candidates that top-p looks at before it sorts the vocabulary."""

_OUT_OF_REACH = 1e30
"""Taken from the scores of removed tokens. The best token is always kept, and its score is that of its noise, above -4."""


def draw_greedy(logits: Tensor) -> Tensor:
    """The highest logit's token, the lowest id among equals."""
    return logits.max(dim=-1).indices


def draw_whole(logits: Tensor, params: RowParams, positions: Tensor) -> Tensor:
    """Rows without top_k and top_p: Gumbel-max over every token."""
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(params.temperature[:, None])
    least = params.min_p.log().clamp(min=torch.finfo(logits.dtype).min)[:, None]
    # -1 where min_p removes the token, else 0: a masked fill takes ten times as long on a CPU.
    removed = (scaled - least).clamp_(max=0).sign_()
    scores = scaled.add_(gumbel(row_keys(params.seed, positions), tokens, logits.dtype))
    return scores.add_(removed, alpha=_OUT_OF_REACH).max(dim=-1).indices


def draw_head(logits: Tensor, params: RowParams, positions: Tensor, top_k: int) -> Tensor:
    """Rows that all have a top_k of at most `top_k`."""
    return _draw_ranked(*ranked(logits, top_k), params, positions, total=None)


def draw_nucleus(logits: Tensor, params: RowParams, positions: Tensor) -> Tensor:
    """Rows with top_p and no top_k.

    On a CPU the vocabulary is sorted only for rows whose first HEAD_TOKENS do not reach top_p. On a GPU that look would
    wait for the device, which costs more than the sort.
    """
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(params.temperature[:, None])
    total = scaled.exp_().sum(-1, dtype=torch.float64)  # [R]
    if logits.is_cuda:
        return _draw_ranked(*ranked(logits, logits.shape[-1]), params, positions, total)
    values, tokens = ranked(logits, HEAD_TOKENS)
    drawn = _draw_ranked(values, tokens, params, positions, total)
    wide = (masses_of(values, params).sum(-1) < params.top_p * total).nonzero()[:, 0]
    if len(wide):
        values, tokens = ranked(logits[wide], logits.shape[-1])
        drawn[wide] = _draw_ranked(values, tokens, params.take(wide), positions[wide], total[wide])
    return drawn


def _scaled(values: Tensor, params: RowParams) -> Tensor:
    """Ranked logits [R, K] below the row's best, over the temperature: best first, so nothing overflows."""
    return (values - values[:, :1]) / params.temperature[:, None]


def masses_of(values: Tensor, params: RowParams) -> Tensor:
    """Unnormalised probabilities [R, K] float64 of ranked logits; those past a row's top_k are 0."""
    rank = torch.arange(values.shape[-1], device=values.device)
    past = (rank >= params.top_k[:, None]) & (params.top_k[:, None] > 0)
    return _scaled(values, params).double().exp_().masked_fill_(past, 0.0)


def _draw_ranked(values: Tensor, tokens: Tensor, params: RowParams, positions: Tensor, total: Tensor | None) -> Tensor:
    """Gumbel-max over what top_k, top_p and min_p leave of ranked logits and their tokens [R, K]; total: see `kept_masses`."""
    kept = kept_masses(values, params, total) > 0
    scores = _scaled(values, params).add_(gumbel(row_keys(params.seed, positions), tokens, values.dtype))
    return best_token(scores.masked_fill_(~kept, float("-inf")), tokens)


def kept_masses(values: Tensor, params: RowParams, total: Tensor | None = None) -> Tensor:
    """Unnormalised probabilities [R, K] float64 of ranked logits [R, K], 0 of what top_k, top_p and min_p remove.

    total: [R] float64 mass of all that top_p is a share of; None means the rows' first top_k. Masses are summed in
    float64, one by one in rank order, so that a row's nucleus does not depend on how many ranks its company asks for.
    """
    masses = masses_of(values, params)
    reached = masses.cumsum(-1)  # [R, K]
    target = params.top_p * (reached[:, -1] if total is None else total)
    target = torch.where(params.top_p < 1, target, float("inf"))
    kept = (reached - masses < target[:, None]) & (_scaled(values, params) >= params.min_p.log()[:, None])
    return masses.masked_fill_(~kept, 0.0)


def best_token(scores: Tensor, tokens: Tensor) -> Tensor:
    """Of scores [R, K] of tokens [R, K] the best one's token [R], the lowest id among equals."""
    best = scores.amax(-1, keepdim=True)
    return tokens.masked_fill(scores < best, torch.iinfo(torch.int64).max).amin(-1)
