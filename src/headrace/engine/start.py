"""What an engine's start took: seconds of each part, and bytes of each part beside what the budget planned for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headrace.engine.verify_fit import Taken, notes
from headrace.plan.budget import Budget
from headrace.plan.fixed_lines import CODE_LINE, CONTEXT_LINE

_WORKSPACE = "workspace"
_PARTS = ("weights", _WORKSPACE, "graphs", "kernel buffers", CONTEXT_LINE, CODE_LINE)
"""Budget lines that are measured apart, or not at all, by a part of their names; all others are the cache's."""


def planned_workspace(budget: Budget) -> int:
    """Bytes that steps take for a while."""
    return sum(line.bytes for line in budget.lines if line.name.endswith(_WORKSPACE))


@dataclass(slots=True)
class Start:
    """laps: (what was done, seconds). taken: bytes by part, of a GPU. fit: what --verify-fit found."""

    laps: list[tuple[str, float]] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    fit: tuple[Taken, ...] = ()
    _since: float = field(default_factory=lambda: time.perf_counter())

    def lap(self, done: str) -> None:
        """`done` is what was done since the last call."""
        now = time.perf_counter()
        self.laps.append((done, now - self._since))
        self._since = now

    def memory(self, budget: Budget) -> dict[str, tuple[int, int]]:
        """part -> (planned, taken)."""
        planned = dict.fromkeys(self.taken, 0)
        for line in budget.lines:
            part = next((part for part in _PARTS if part in line.name), "cache")
            planned[part] = planned.get(part, 0) + line.bytes
        return {part: (planned[part], taken) for part, taken in self.taken.items()}

    def notes(self, budget: Budget) -> list[str]:
        """A line of seconds, one of bytes where they are known, and what --verify-fit says."""
        seconds = ", ".join(f"{done} {took:.1f} s" for done, took in self.laps)
        memory = ", ".join(f"{part} {taken:,} of {planned:,}" for part, (planned, taken) in self.memory(budget).items())
        taken = [f"memory taken, of what was planned, in bytes: {memory}"] if memory else []
        return [f"start: {seconds}", *taken, *(notes(budget, self.fit) if self.fit else ())]
