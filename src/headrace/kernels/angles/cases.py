"""Inputs on which every implementation of angles must agree. The formula is in the operation's tests: it has one tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    positions: tuple[int, ...]
    count: int
    theta: float = 1e4


CASES = (
    Case("one", (0,), 1),
    Case("odd", (5, 3, 17), 7),
    Case("far", (131_071, 262_143, 1_000_003, 2**24 - 1), 32, 1e7),
    Case("many", tuple(range(0, 3_000, 37)), 64),
    Case("none", (), 8),
)


def inputs(case: Case) -> dict[str, Any]:
    frequencies = 1.0 / case.theta ** (torch.arange(case.count, dtype=torch.float32) / case.count)
    return {
        "positions": torch.tensor(case.positions, dtype=torch.int64), "frequencies": frequencies, "dtype": torch.float32,
    }
