"""Acceptance that a coin decides, for benchmarks of models whose weights are random: nobody could propose what those say."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels.sample.noise import row_keys, uniform
from headrace.kernels.sample.slots import SlotState

_SALT = 0x5EED_0F_C011
"""Apart from the noise that tokens are drawn with."""


class Coin:
    """chances [slots] float32: of a draft to be accepted if those before it are. Its falls are keyed by seed and position."""

    def __init__(self, state: SlotState, chance: float) -> None:
        self._state = state
        self.chances = torch.full((len(state.integers),), chance, device=state.integers.device)

    def decide(self, tokens: Tensor, drafts: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """tokens [N] drawn for positions [N] of slots [N], with the draft of that place instead where it is to be accepted, and
        some other token where it is not.
        """
        keys = row_keys(self._state.integers[slots, 0] + _SALT, positions)
        fell = uniform(keys, torch.zeros(1, dtype=torch.int64, device=tokens.device), torch.float32)[:, 0]
        vocab = self._state.marks.shape[1]
        others = torch.where(tokens == drafts, (tokens + 1) % vocab, tokens)
        return torch.where(fell < self.chances[slots], drafts, others)
