"""The definition of draw_candidates in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sample.noise import gumbel, row_keys


def draw_candidates(
    scores: Tensor, candidates: Tensor, slots: Tensor, positions: Tensor, integers: Tensor, numbers: Tensor
) -> Tensor:
    temperature = numbers[slots, 0, None].to(scores.dtype)
    noise = gumbel(row_keys(integers[slots, 0], positions), candidates, scores.dtype)
    warm = scores / temperature.clamp(min=torch.finfo(scores.dtype).tiny) + noise
    best = torch.where(temperature > 0, warm, scores).argmax(1)
    return candidates.gather(1, best[:, None])[:, 0]
