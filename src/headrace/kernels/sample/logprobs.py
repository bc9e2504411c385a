"""Log-probabilities of tokens and of their best alternatives under the model's own logits."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sample.ranking import ranked_in_blocks

LOWEST_LOGPROB = -9999.0
"""Reported for anything less likely, impossible tokens included: JSON has no -inf and no NaN."""


def top_logprobs(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """log_softmax of logits [R, V] at tokens [R], and its k highest values with their ids.

    Returns chosen [R], values [R, K], ids [R, K] with K = min(k, V), best first and the lowest id first among equals. All
    values are from LOWEST_LOGPROB to 0; a NaN becomes LOWEST_LOGPROB.
    """
    normaliser = torch.logsumexp(logits, dim=-1, keepdim=True)  # [R, 1]
    chosen = logits.gather(1, tokens[:, None])
    if k == 0:
        return _finite(chosen - normaliser)[:, 0], logits[:, :0], tokens[:, None][:, :0]
    values, ids = ranked_in_blocks(logits, k)
    return _finite(chosen - normaliser)[:, 0], _finite(values - normaliser), ids


def _finite(logprobs: Tensor) -> Tensor:
    return logprobs.nan_to_num(nan=LOWEST_LOGPROB).clamp(min=LOWEST_LOGPROB, max=0.0)
