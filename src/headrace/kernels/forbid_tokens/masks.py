"""Which tokens may be drawn next: bit masks of the vocabulary, by slot and place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Of S slots, P places each, and M masks of a vocabulary of V tokens.

    places [S, 1 + P] int64: of a slot the position that its next token is drawn for, which is place 0; and of each place, which
    are the positions from there on, its mask, -1 for none. words [M, ceil(V / 32)] int32: bit t % 32 of word t // 32 is 1 where
    token t is allowed; what is behind the vocabulary counts for nothing.
    """

    places: Tensor
    words: Tensor

    @classmethod
    def allocate(cls, slots: int, places: int, vocab_size: int, device: torch.device) -> TokenMasks:
        """Memory sized as `plan.mask_memory` says, for a mask of every place, in which none has one."""
        return cls(
            places=torch.full((slots, 1 + places), -1, dtype=torch.int64, device=device),
            words=torch.zeros(slots * places, -(-vocab_size // 32), dtype=torch.int32, device=device),
        )
