"""Texts that sequences follow whatever the model says, so that its log-probabilities of them are measured through any steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headrace.types import Request


class Script:
    """texts: by request id, a sequence's tokens, prompt included. Those in slots are on the device, for steps in flight."""

    def __init__(self, texts: Mapping[str, Sequence[int]], slots: int, device: torch.device) -> None:
        self._texts, self._last = texts, max(map(len, texts.values())) - 1
        self._tokens = torch.zeros(slots, self._last + 1, dtype=torch.int64, device=device)

    def begin(self, slot: int, request: Request) -> None:
        """The request has taken a slot. Raises ValueError for one that captured draws would take off its text."""
        if request.params.logprobs is None:
            raise ValueError(f"request {request.id!r} follows a text, so it must ask for log-probabilities")
        text = torch.tensor(self._texts[request.id]).to(self._tokens.device, non_blocking=True)
        self._tokens[slot, : len(text)] = text

    def tokens(self, slots: Tensor, positions: Tensor) -> Tensor:
        """[N] int64: what is at positions [N] of the sequences in slots [N]; behind a text's end anything."""
        return self._tokens[slots, positions.clamp(max=self._last)]
