"""Optimisers and their learning rates: Muon for the matrices inside, AdamW for all else."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

MATRIX_RATE, OTHER_RATE = 0.02, 0.003
DECAY = 0.1


def optimisers(model: nn.Module) -> list[Optimizer]:
    """Embeddings, norms, convolutions and the gates' parameters are no matrices that turn one space into another."""
    weights = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    matrices = [w for name, w in weights if w.ndim == 2 and "embed" not in name and "codebook" not in name]
    chosen = {id(weight) for weight in matrices}
    others = [weight for _, weight in weights if id(weight) not in chosen]
    fused = bool(others) and others[0].is_cuda
    return [
        Muon(matrices, lr=MATRIX_RATE, weight_decay=DECAY, momentum=0.95),
        AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=fused),
    ]


def rate(step: int, steps: int, first: float = 0.04, last: float = 0.6) -> float:
    """Of the full learning rate: up over the `first` share of all steps, then level, then down to nothing over the `last`."""
    down = (steps - step) / max(1, steps * last)
    return max(0.0, min(1.0, (step + 1) / max(1, steps * first), down))


def advance(model: nn.Module, chosen: list[Optimizer], share: float, most: float = 1.0) -> None:
    """One step at that share of the full rates, the gradients' norm made at most `most`; the gradients are gone then."""
    torch.nn.utils.clip_grad_norm_([w for w in model.parameters() if w.grad is not None], most)
    for optimiser, full in zip(chosen, (MATRIX_RATE, OTHER_RATE), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = full * share
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
