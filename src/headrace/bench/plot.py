"""Curves of `headrace bench serve` records: what users at once, or requests a second, do to speed and to waiting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, HeadraceError

PANELS = (
    ("output tokens/s", "completion_tokens_per_s"), ("first token, ms", "ttft_ms"), ("per token after it, ms", "tpot_ms"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """The runs of one record under one kind of load ("users" or "requests/s"), in the order of the load."""

    label: str
    load: str
    runs: tuple[dict[str, Any], ...]

    @property
    def loads(self) -> list[float]:
        return [run["concurrency"] or run["rate"] for run in self.runs]

    def values(self, name: str, percentile: str) -> list[float | None]:
        """A figure of each run; of a spread its percentile. None where nothing was answered."""
        found = [run[name] for run in self.runs]
        return [figure[percentile] if isinstance(figure, dict) else figure for figure in found]


def read_curves(files: Sequence[Path]) -> list[Curve]:
    """Labelled with the files' names. Raises ConfigError naming a file that is no record of `bench serve`."""
    return [curve for file in files for curve in _curves(file)]


def _curves(file: Path) -> list[Curve]:
    try:
        record = json.loads(file.read_text())
        runs = record["results"]["runs"] if record["benchmark"] == "serve" else None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        runs = None
    if runs is None:
        raise ConfigError(f"{file} is not a record of `headrace bench serve` or `headrace bench speculate`")
    kinds = (("users", "concurrency"), ("requests/s", "rate"))
    found = ((kind, sorted((run for run in runs if run[key]), key=lambda run: float(run[key]))) for kind, key in kinds)
    return [Curve(file.stem, kind, tuple(of_kind)) for kind, of_kind in found if of_kind]


def draw(curves: Sequence[Curve], file: Path) -> None:
    """A picture: a row of panels for each kind of load; lines are medians, dashed ones the 95th percentile.

    Raises HeadraceError without matplotlib, ConfigError for a file that it cannot write.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HeadraceError("plots need matplotlib: pip install 'headrace[plot]'") from None
    loads = sorted({curve.load for curve in curves}, reverse=True)
    figure = Figure(figsize=(4.5 * len(PANELS), 3.5 * len(loads)), layout="constrained")
    rows = figure.subplots(len(loads), len(PANELS), squeeze=False)
    for load, row in zip(loads, rows, strict=True):
        for (title, name), axes in zip(PANELS, row, strict=True):
            _panel(axes, [curve for curve in curves if curve.load == load], name)
            axes.set(title=title, xlabel=load, ylim=(0, None))
    rows[0][0].legend()
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:  # a directory that is missing, a format that there is not
        raise ConfigError(f"{file}: {error}") from None


def _panel(axes: Any, curves: Sequence[Curve], name: str) -> None:
    for number, curve in enumerate(curves):
        axes.plot(curve.loads, curve.values(name, "p50"), f"C{number}o-", label=curve.label)
        if name.endswith("_ms"):
            axes.plot(curve.loads, curve.values(name, "p95"), f"C{number}--")
