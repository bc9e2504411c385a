"""When requests are sent that do not wait for each other."""

from __future__ import annotations

import random
from itertools import accumulate

KINDS = ("poisson", "even")


def arrival_times_s(kind: str, rate: float, count: int, seed: str) -> list[float]:
    """Seconds from the start, the first one at 0, `rate` a second on average: of a Poisson process, or evenly spaced."""
    source = random.Random(f"{seed}/arrivals")
    gaps = [source.expovariate(rate) if kind == "poisson" else 1 / rate for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0))
