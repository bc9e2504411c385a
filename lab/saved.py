"""A run's state, so that it can be cut into pieces: weights, optimisers, the step, and the losses so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer


@dataclass
class Progress:
    """losses: (step, training loss, held-out loss or None), one a report."""

    step: int = 0
    losses: list[tuple[int, float, float | None]] = field(default_factory=list)


def save(path: Path, model: nn.Module, optimisers: list[Optimizer], progress: Progress) -> None:
    """In place of what was there, whole or not at all."""
    partial = path.with_suffix(".partial")
    torch.save({
        "model": model.state_dict(), "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "step": progress.step, "losses": progress.losses,
    }, partial)
    partial.replace(path)


def resume(path: Path, model: nn.Module, optimisers: list[Optimizer]) -> Progress:
    """From the start where nothing was saved."""
    if not path.exists():
        return Progress()
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    return Progress(state["step"], [tuple(loss) for loss in state["losses"]])
