"""The picture of a training: the model's losses beside the 5-gram model's, and how the drafters came to guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Losses = Sequence[tuple[int, float, float | None]]
"""As `lab.saved.Progress` has them."""


def draw(model: Losses, five_gram: float, drafters: Mapping[str, Losses], file: Path) -> None:
    """Left: nats a token over steps, from where they are below 7. Right: tokens of a verification that are expected."""
    from matplotlib.figure import Figure  # of the extra `lab`

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = [loss for loss in model if loss[1] < 7]
    left.plot([step for step, *_ in shown], [loss for _, loss, _ in shown], label="training text", color="tab:blue", alpha=0.6)
    outside = [(step, loss) for step, _, loss in shown if loss is not None]
    left.plot(*zip(*outside, strict=True), label="held-out text, mean of its kinds", color="tab:orange")
    left.axhline(five_gram, label="5-gram model, held-out text", color="tab:gray", linestyle="--")
    left.set(xlabel="steps", ylabel="nats a token")
    for name, losses in drafters.items():
        expected = [(step, tokens) for step, _, tokens in losses if tokens is not None]
        right.plot(*zip(*expected, strict=True), label=name)
    right.set(xlabel="steps", ylabel="expected tokens of a verification")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.legend()
    figure.savefig(file, dpi=100, metadata={"Software": None})
