"""What drafts gain, as a picture: a panel for each number of users, a line for each drafter over its numbers of drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, HeadraceError


def draw(gains: Sequence[Mapping[str, Any]], file: Path) -> None:
    """gains: as `bench.scenarios.gain` has them. Dashes are the controllers, a cross the engine without a drafter.

    Raises HeadraceError without matplotlib, ConfigError for a file that it cannot write.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HeadraceError("plots need matplotlib: pip install 'headrace[plot]'") from None
    users = sorted({gain["users"] for gain in gains})
    figure = Figure(figsize=(3.6 * len(users), 3.6), layout="constrained")
    for number, axes in zip(users, figure.subplots(1, len(users), squeeze=False)[0], strict=True):
        _panel(axes, [gain for gain in gains if gain["users"] == number])
        axes.set(title=f"{number} user{'s' if number > 1 else ''}", xlabel="drafts", ylim=(0, None))
    figure.axes[0].set_ylabel("tokens/s")
    figure.axes[0].legend(fontsize="small", loc="lower center")
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:  # a directory that is missing, a format that there is not
        raise ConfigError(f"{file}: {error}") from None


def _panel(axes: Any, gains: Sequence[Mapping[str, Any]]) -> None:
    off = [gain["tokens_per_s"] for gain in gains if gain["drafter"] == "off"]
    axes.plot([0] * len(off), off, "kx", label="off")
    for number, name in enumerate(dict.fromkeys(gain["drafter"] for gain in gains if gain["drafter"] != "off")):
        mine = [gain for gain in gains if gain["drafter"] == name]
        fixed = sorted((gain["k"], gain["tokens_per_s"]) for gain in mine if gain["k"] is not None)
        axes.plot([k for k, _ in fixed], [rate for _, rate in fixed], f"C{number}o-", label=name)
        for rate in (gain["tokens_per_s"] for gain in mine if gain["k"] is None):
            axes.axhline(rate, color=f"C{number}", linestyle="--", linewidth=1)
