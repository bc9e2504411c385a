"""What happens to logits before temperature: logit_bias, penalties, and the mask that keeps a message open."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_SHIFT, Features, RowParams, SlotState


def adjust_(logits: Tensor, state: SlotState, slots: Tensor, features: Sequence[Features]) -> Tensor:
    """Overwrites logits [R, V] of rows in `slots` [R] with the adjusted ones and returns them.

    A stage that any row needs runs on all: its neutral parameters leave the others' bits as they are.
    """
    params = RowParams.gather(state, slots, logits.dtype)
    entries = max(f.bias_entries for f in features)
    if entries:
        logits.scatter_add_(1, state.bias_tokens[slots, :entries], state.bias_values[slots, :entries].to(logits.dtype))
    if not any(f.penalised or f.held_open for f in features):
        return logits
    marks = state.marks[slots]  # [R, V]
    if any(f.penalised for f in features):
        _penalise_(logits, marks, params)
    if any(f.held_open for f in features):
        open_rows = params.generated < params.min_tokens
        logits.masked_fill_((marks & ENDS_MESSAGE).bool() & open_rows[:, None], float("-inf"))
    return logits


def _penalise_(logits: Tensor, marks: Tensor, params: RowParams) -> None:
    """Repetition (Keskar et al. 2019: positive logits divided, others multiplied), then presence and frequency (OpenAI)."""
    penalty = params.repetition[:, None]
    repeated = torch.where(logits > 0, logits / penalty, logits * penalty)
    torch.where((marks & ~ENDS_MESSAGE).bool(), repeated, logits, out=logits)
    generated = (marks >> GENERATED_SHIFT).to(logits.dtype)
    logits.sub_(generated.sign() * params.presence[:, None]).sub_(generated * params.frequency[:, None])
