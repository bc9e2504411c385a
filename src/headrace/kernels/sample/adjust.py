"""What happens to logits before temperature: logit_bias, penalties, and the mask that keeps a message open."""

from __future__ import annotations

from collections.abc import Sequence

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
    marks = state.marks.index_select(0, slots)  # [R, V]
    if any(f.penalised for f in features):
        _penalise_(logits, marks, params)
    if any(f.held_open for f in features):
        open_rows = (params.generated < params.min_tokens)[:, None].to(logits.dtype)
        ends = (marks & ENDS_MESSAGE).bool().to(logits.dtype)
        logits.add_((1 - ends * open_rows).log_())  # log 0 = -inf, log 1 = 0
    return logits


def _penalise_(logits: Tensor, marks: Tensor, params: RowParams) -> None:
    """Repetition (Keskar et al. 2019: positive logits divided, others multiplied), then presence and frequency (OpenAI).

    In arithmetic that is exact where it selects, since torch.where takes twenty times as long on a CPU.
    """
    seen = (marks & ~ENDS_MESSAGE).bool().to(logits.dtype)
    penalty = seen * params.repetition[:, None] + (1 - seen)
    repeated = (logits.clamp(min=0) / penalty).add_(logits.clamp(max=0) * penalty)
    generated = (marks >> GENERATED_SHIFT).to(logits.dtype)
    repeated.sub_(generated.sign() * params.presence[:, None]).sub_(generated * params.frequency[:, None])
    logits.copy_(repeated)
