"""Which of a place's candidates follows the token before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels.candidate_scores import candidate_scores
from headrace.layers.linear import Linear, empty_parameter


class CandidateSelector(nn.Module):
    """A table of which token may follow which, of low rank, and weighed by the hidden state of the place. Source: DFlash2."""

    def __init__(self, vocab_size: int, hidden: int, rank: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.predecessor_codebook = empty_parameter((vocab_size, rank), dtype, device)
        self.successor_codebook = empty_parameter((vocab_size, rank), dtype, device)
        self.projection = Linear(hidden, rank, dtype=dtype, device=device)

    def scores(self, unary: Tensor, candidates: Tensor, before: Tensor, weights: Tensor) -> Tensor:
        """unary [R, C]: logits of candidates [R, C]; before [R]: the tokens before them; weights [R, rank]: `projection` of the
        places' hidden states -> [R, C].
        """
        return candidate_scores(
            unary, candidates, before, weights, self.predecessor_codebook, self.successor_codebook
        )
