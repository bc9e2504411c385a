"""Decoding with drafts as measured costs make it expected. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.speculate.costs import StepCosts
from headrace.speculate.pace import FixedPace, MeasuredPace, Pace


def expected(
    chances: Sequence[float], drafts: int | None, costs: StepCosts, most: int, learning: int, steps: int
) -> float:
    """Tokens a second as the costs have it, from rows on of as many tokens as they were measured with; by the controller over a
    coin of its own if drafts are None.
    """
    rows, coin = len(chances), np.random.default_rng(0)
    chance, depths = np.array(chances)[:, None], np.arange(1, most + 1)
    passed_s = tokens = seconds = 0.0
    pace: Pace = MeasuredPace(rows, most, costs, lambda: passed_s, quiet=True) if drafts is None else FixedPace(most, drafts)
    slots, limits, contexts, before = range(rows), [most] * rows, np.full(rows, costs.context), 0
    for step in range(learning + steps):
        counts = np.array(pace.choose(slots, limits, contexts.tolist()), dtype=np.int64)
        pace.planned(int(counts.sum()), usual=True)
        accepted = np.minimum(counts, np.cumprod(coin.random((rows, most)) < chance, axis=1).sum(1))
        step_s = costs.seconds(counts, contexts, most) + costs.behind(rows, int(counts.sum()), before)
        passed_s, before = passed_s + step_s, int(counts.sum())
        pace.observe(slots, counts.tolist(), accepted.tolist(), step_s)
        contexts += 1 + accepted
        if step >= learning:
            tokens += rows + float((chance**depths)[depths <= counts[:, None]].sum())
            seconds += step_s
    return tokens / seconds
