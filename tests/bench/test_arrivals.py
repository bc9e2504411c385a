from __future__ import annotations

import math
import statistics

import pytest

from headrace.bench.arrivals import arrival_times_s

COUNT = 20001


def gaps(kind: str, seed: str = "0") -> list[float]:
    times = arrival_times_s(kind, 50.0, COUNT, seed)
    assert len(times) == COUNT and times[0] == 0 and times == sorted(times)
    return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


def test_a_poisson_process_has_exponential_gaps() -> None:
    found = gaps("poisson")
    error = 5 / math.sqrt(len(found))  # five standard errors of a mean of exponentials
    assert statistics.mean(found) * 50 == pytest.approx(1, abs=error)
    assert statistics.stdev(found) * 50 == pytest.approx(1, abs=2 * error)
    for share in (0.1, 0.5, 0.9):
        quantile = -math.log(1 - share) / 50
        assert sum(gap <= quantile for gap in found) / len(found) == pytest.approx(share, abs=error)
    pairs = zip(found, found[1:], strict=False)
    assert abs(statistics.mean((a * 50 - 1) * (b * 50 - 1) for a, b in pairs)) < error, "a gap says nothing about the next"


def test_counts_in_equal_times_are_as_spread_as_their_mean() -> None:
    times = arrival_times_s("poisson", 50.0, COUNT, "1")
    counts = [0] * int(times[-1])
    for at in times:
        if at < len(counts):
            counts[int(at)] += 1
    assert statistics.variance(counts) / statistics.mean(counts) == pytest.approx(1, abs=0.35)


def test_even_arrivals_are_even() -> None:
    assert gaps("even") == pytest.approx([0.02] * (COUNT - 1))


def test_seeds_replay_and_more_requests_begin_with_the_same_times() -> None:
    assert arrival_times_s("poisson", 3.0, 10, "a") == arrival_times_s("poisson", 3.0, 20, "a")[:10]
    assert arrival_times_s("poisson", 3.0, 10, "a") != arrival_times_s("poisson", 3.0, 10, "b")
