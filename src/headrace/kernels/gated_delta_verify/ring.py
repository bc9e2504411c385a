"""What a slot remembers of the drafts of its last step, so that those accepted can join its state later."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

MAX_TOKENS = 16
"""Most tokens of a row, certain and drafts together, and most drafts that a ring holds."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Two halves of K drafts for every slot of one layer. A step reads one half and writes the other.

    keys [slots, 2, K, HK, DK]: after their norm. deltas [slots, 2, K, HV, DV]: d = beta (v - S^T k). Both are fp16 where
    activations have 16 bits: the bf16 of activations would be S's largest rounding. decays [slots, 2, K, HV], in float32 or
    better: g summed from the step's first draft on. inputs [slots, 2, K, C]: of the convolution, in the activations' type.
    """

    keys: Tensor
    deltas: Tensor
    decays: Tensor
    inputs: Tensor
