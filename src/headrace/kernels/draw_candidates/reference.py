"""The definition of draw_candidates in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sample.accept import draw_among
from headrace.kernels.sample.noise import gumbel, row_keys
from headrace.kernels.sample.odds import Odds
from headrace.kernels.sample.slots import RowParams


def draw_candidates(
    scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor, odds: Odds,
    place: int,
) -> Tensor:
    params = RowParams.of(integers[slots], numbers[slots], scores.dtype)
    params.temperature.clamp_(min=torch.finfo(scores.dtype).tiny)
    noise = gumbel(row_keys(params.seed, positions), candidates, scores.dtype)
    warm, known = numbers[slots, 0] > 0, odds.free[slots] & (numbers[slots, 0] > 0)
    best = torch.where(warm[:, None], scores / params.temperature[:, None] + noise, scores).argmax(1, keepdim=True)
    free, chances = draw_among(scores, candidates, params, positions)
    odds.put(slots, place, candidates, chances, known)
    return torch.where(known, free, candidates.gather(1, best)[:, 0])
