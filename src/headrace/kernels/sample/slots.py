"""The sampler's memory as kernels see it: parameters and marks of every slot, read by slot index."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from headrace.types import MAX_LOGIT_BIAS

IN_PROMPT = 1
ENDS_MESSAGE = 2
GENERATED_ONCE = 4
GENERATED_SHIFT = 2


@dataclass(frozen=True, slots=True)
class SlotState:
    """Per-slot tensors of S slots and a vocabulary of V tokens.

    integers: [S, 4] int64: seed, top_k (0 is off), min_tokens, tokens generated so far.
    numbers: [S, 6] float64, independent of the logits' dtype: temperature (0 is greedy), top_p, min_p, presence,
    frequency and repetition penalty.
    bias_tokens, bias_values: [S, MAX_LOGIT_BIAS] int64, float64: used entries first, none of them 0.0, each token once; then
    token 0 with 0.0, which changes nothing and ends the list.
    marks: [S, V] int32: IN_PROMPT, ENDS_MESSAGE (EOS and stop ids), and GENERATED_ONCE for each time it was generated.
    """

    integers: Tensor
    numbers: Tensor
    bias_tokens: Tensor
    bias_values: Tensor
    marks: Tensor

    @classmethod
    def allocate(cls, slots: int, vocab_size: int, device: torch.device) -> SlotState:
        """Memory sized as `plan.sampler_memory` says, in which every slot is greedy and changes no logit."""
        numbers = torch.zeros(slots, 6, dtype=torch.float64, device=device)
        numbers[:, 5] = 1.0  # a repetition penalty of 0 would make padding's rows read their marks
        return cls(
            integers=torch.zeros(slots, 4, dtype=torch.int64, device=device),
            numbers=numbers,
            bias_tokens=torch.zeros(slots, MAX_LOGIT_BIAS, dtype=torch.int64, device=device),
            bias_values=torch.zeros(slots, MAX_LOGIT_BIAS, dtype=torch.float64, device=device),
            marks=torch.zeros(slots, vocab_size, dtype=torch.int32, device=device),
        )

    def count_generated(self, slots: Tensor) -> None:
        """One more token generated in each of `slots` [R]."""
        self.integers[slots, 3] += 1

    def tensors(self) -> tuple[Tensor, ...]:
        return self.integers, self.numbers, self.bias_tokens, self.bias_values, self.marks


@dataclass(frozen=True, slots=True)
class RowParams:
    """The parameters of R rows, gathered from their slots and in the logits' dtype; each tensor is [R]."""

    seed: Tensor
    top_k: Tensor
    min_tokens: Tensor
    generated: Tensor
    temperature: Tensor
    top_p: Tensor  # float64, as the masses that it is compared with
    min_p: Tensor
    presence: Tensor
    frequency: Tensor
    repetition: Tensor

    @classmethod
    def gather(cls, state: SlotState, slots: Tensor, dtype: torch.dtype) -> RowParams:
        return cls.of(state.integers[slots], state.numbers[slots], dtype)

    @classmethod
    def of(cls, integers_of: Tensor, numbers: Tensor, dtype: torch.dtype) -> RowParams:
        """Of rows' integers [R, 4] and numbers [R, 6], as `SlotState` has them."""
        integers, rounded = integers_of.unbind(1), numbers.to(dtype).unbind(1)
        return cls(
            seed=integers[0],
            top_k=integers[1],
            min_tokens=integers[2],
            generated=integers[3],
            temperature=rounded[0],
            top_p=numbers[:, 1],
            min_p=rounded[2],
            presence=rounded[3],
            frequency=rounded[4],
            repetition=rounded[5],
        )

    def take(self, rows: Tensor | slice) -> RowParams:
        """The parameters of some of the rows."""
        return RowParams(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Features:
    """What one row's parameters switch on, known to the host, so that a step costs only what its rows ask for.

    bias_entries: used entries of the slot's logit_bias. penalised: any penalty. held_open: min_tokens may not be reached
    yet (the device's count decides). top_k: 0 is off. nucleus: top_p below 1.
    """

    greedy: bool = True
    top_k: int = 0
    nucleus: bool = False
    bias_entries: int = 0
    penalised: bool = False
    held_open: bool = False

    @property
    def adjusts(self) -> bool:
        """Whether the logits change before temperature."""
        return self.bias_entries > 0 or self.penalised or self.held_open
