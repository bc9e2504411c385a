"""Pictures of `headrace bench speculate`: what drafts do to the tokens a second, by users, drafter and number of drafts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bench.expected_rate import expected
from headrace.errors import ConfigError, HeadraceError
from headrace.speculate.costs import StepCosts

MIXED = "mixed"
_LEARNING, _STEPS = 100, 200
"""Of the controller over the costs."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One drafter, of `most` drafts a row: costs, and the runs that were measured, as a record has them."""

    drafter: str
    most: int
    costs: StepCosts
    runs: tuple[Mapping[str, Any], ...]

    @property
    def users(self) -> list[int]:
        return sorted(self.costs.steps)


def chances_of(users: int, acceptance: str) -> list[float]:
    """Of each user: mixed is half of them at 0 and half at 0.95."""
    return [0.95 * (user % 2) for user in range(users)] if acceptance == MIXED else [float(acceptance)] * users


def costs_to_json(costs: StepCosts) -> dict[str, Any]:
    names = ("steps", "drafter", "context", "context_s", "draft_context_s")
    return {name: getattr(costs, name) for name in names}


def _costs(found: Mapping[str, Any]) -> StepCosts:
    steps = {int(rows): {int(tokens): float(s) for tokens, s in of.items()} for rows, of in found["steps"].items()}
    drafter = {int(rows): tuple(map(float, seconds)) for rows, seconds in found["drafter"].items()}
    return StepCosts(steps, drafter, found["context"], found["context_s"], found["draft_context_s"])


def sweeps_of(results: Mapping[str, Any]) -> list[Sweep]:
    """Of the results of `headrace bench speculate`, fresh or read from JSON."""
    found = []
    for each in results["sweeps"]:
        costs = _costs(each["costs"])
        most = max(map(len, costs.drafter.values()))
        found.append(Sweep(each["speculate"], most, costs, tuple(each["runs"])))
    return found


def read_sweeps(files: Sequence[Path]) -> list[Sweep]:
    """Of those files that are records of `bench speculate`."""
    found = []
    for file in files:
        try:
            record = json.loads(file.read_text())
            found += sweeps_of(record["results"]) if record["benchmark"] == "speculate" else []
        except (OSError, ValueError, LookupError, TypeError):  # `bench.plot` says what is wrong with a file that is neither's
            continue
    return found


def draw(sweeps: Sequence[Sweep], file: Path) -> None:
    """A row of panels for each drafter, a column for each acceptance: tokens a second beside those without drafts, by users.

    Lines are what the measured times of steps and proposals make expected, marks what was measured end to end. Raises
    HeadraceError without matplotlib, ConfigError for a file that it cannot write.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HeadraceError("plots need matplotlib: pip install 'headrace[plot]'") from None
    columns = sorted({run["acceptance"] for sweep in sweeps for run in sweep.runs}) or ["0", "0.6", "0.95"]
    figure = Figure(figsize=(3.8 * len(columns), 3.0 * len(sweeps)), layout="constrained")
    rows = figure.subplots(len(sweeps), len(columns), squeeze=False, sharex=True)
    for sweep, row in zip(sweeps, rows, strict=True):
        for acceptance, axes in zip(columns, row, strict=True):
            _panel(axes, sweep, acceptance)
        row[0].set_ylabel(f"{sweep.drafter}: tokens/s, beside none")
    for acceptance, axes in zip(columns, rows[0], strict=True):
        axes.set_title("half at 0, half at 0.95" if acceptance == MIXED else f"{acceptance} of drafts accepted")
    for axes in rows[-1]:
        axes.set_xlabel("users")
    rows[0][0].legend(fontsize="small")
    try:
        figure.savefig(file, dpi=100)
    except (OSError, ValueError) as error:  # a directory that is missing, a format that there is not
        raise ConfigError(f"{file}: {error}") from None


def _panel(axes: Any, sweep: Sweep, acceptance: str) -> None:
    users = [count for count in sweep.users if count > 1 or acceptance != MIXED]
    fixed = sorted({min(count, sweep.most) for count in (1, 3, 7)})
    for number, drafts in enumerate([*fixed, None]):
        style = {"color": "k" if drafts is None else f"C{number}", "linewidth": 1.8 if drafts is None else 1.0}
        label = "controller" if drafts is None else f"{drafts} draft{'s' * (drafts > 1)}"
        axes.plot(users, [_expected_gain(sweep, count, acceptance, drafts) for count in users], label=label, **style)
        marks = _measured(sweep, acceptance, drafts)
        axes.plot(*zip(*marks, strict=True) if marks else ((), ()), "o", color=style["color"], markersize=4)
    axes.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sweep.users, [str(count) for count in sweep.users], fontsize="small")
    axes.set_ylim(0, None)


def _expected_gain(sweep: Sweep, users: int, acceptance: str, drafts: int | None) -> float:
    chances, learning = chances_of(users, acceptance), 0 if drafts is not None else _LEARNING
    steps = _STEPS if drafts is None else 1
    with_drafts = expected(chances, drafts, sweep.costs, sweep.most, learning, steps)
    return with_drafts / expected(chances, 0, sweep.costs, sweep.most, 0, 1)


def _measured(sweep: Sweep, acceptance: str, drafts: int | None) -> list[tuple[int, float]]:
    """(users, tokens a second beside none) of the runs in which none were measured too."""
    found = []
    for run in sweep.runs:
        ways = {way["fixed"]: way["tokens_per_s"] for way in run["ways"]} if run["acceptance"] == acceptance else {}
        if 0 in ways and drafts in ways:
            found.append((run["users"], ways[drafts] / ways[0]))
    return sorted(found)
