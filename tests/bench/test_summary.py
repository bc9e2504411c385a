from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.bench.client import Answer, Failure
from headrace.bench.load import Asked
from headrace.bench.summary import Limits, most_at_once, percentile, raw, spread_ms, summarise


def asked(
    sent_s: float, first_s: float, *, tokens: int = 11, chunks: int = 11, gap_s: float = 0.01, max_tokens: int | None = 11,
    turn: int = 0, cached: int | None = None,
) -> Asked:
    """Sent at `sent_s`, its first chunk `first_s` later, and the others `gap_s` apart; it ends 1 ms after the last one."""
    chunks_s = [sent_s + first_s + gap_s * number for number in range(chunks)]
    last_s = chunks_s[-1]
    return Asked(0, turn, max_tokens, Answer(sent_s, chunks_s, last_s, last_s + 0.001, 5, tokens, cached, "length"))


def failed(sent_s: float, kind: str, message: str = "no") -> Asked:
    return Asked(0, 0, 11, Answer(sent_s, [sent_s + 0.1], None, sent_s + 0.2, failure=Failure(kind, message)))


@pytest.mark.parametrize("count", [1, 2, 3, 100, 101])
def test_percentiles_are_numpys(count: int) -> None:
    source = random.Random(count)
    values = sorted(source.expovariate(1) for _ in range(count))
    for percent in (0, 50, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-12)


def test_percentiles_of_known_values() -> None:
    shuffled = random.Random(0).sample(range(1, 102), 101)
    spread = spread_ms(value / 1e3 for value in shuffled)
    assert spread == pytest.approx({"count": 101, "mean": 51, "p50": 51, "p95": 96, "p99": 100, "max": 101})
    assert spread_ms([None, 0.25, None]) == {"count": 1, "mean": 250, "p50": 250, "p95": 250, "p99": 250, "max": 250}
    assert spread_ms([None]) is spread_ms([]) is None


def test_every_request_is_in_the_figures() -> None:
    run = [
        asked(10.0, 0.1, cached=2), asked(10.5, 0.3, chunks=2, gap_s=0.2, cached=0), asked(11.0, 0.2, tokens=4, chunks=4),
        failed(10.2, "http 429"), failed(10.3, "http 429", "still no"), failed(11.8, "disconnected"),
    ]  # fmt: skip
    found = summarise(run, Limits())
    assert found["requests"] == 6 and found["answered"] == 3
    assert found["failures"] == {"http 429": 2, "disconnected": 1}
    assert found["failure_examples"] == {"http 429": "still no", "disconnected": "no"}
    assert found["duration_s"] == pytest.approx(2.0), "from the first sent to the last ended, failed ones too"
    assert (found["prompt_tokens"], found["completion_tokens"], found["cached_tokens"]) == (15, 26, 2)
    assert found["requests_per_s"] == pytest.approx(1.5)
    assert found["completion_tokens_per_s"] == pytest.approx(13) and found["prompt_tokens_per_s"] == pytest.approx(7.5)
    assert found["tokens_per_chunk"] == pytest.approx(26 / 17)
    assert found["shorter_than_asked"] == 1 and found["without_text"] == 0
    assert found["ttft_ms"]["count"] == 3 and found["ttft_ms"]["mean"] == pytest.approx(200)
    assert found["tpot_ms"]["mean"] == pytest.approx((10 + 20 + 10) / 3), "of the server's count of tokens, not of chunks"
    assert found["itl_ms"]["count"] == 10 + 1 + 3 and found["itl_ms"]["max"] == pytest.approx(200)
    assert found["e2e_ms"]["max"] == pytest.approx(501)
    assert "goodput" not in found and "ttft_ms_by_turn" not in found


def test_nothing_answered_has_figures_too() -> None:
    found = summarise([failed(1.0, "connect")], Limits(ttft_ms=1))
    assert (found["answered"], found["completion_tokens_per_s"]) == (0, 0)
    assert found["ttft_ms"] is found["tpot_ms"] is found["tokens_per_chunk"] is None
    assert found["goodput"]["share"] == 0 and found["cached_tokens"] is None


def test_answers_within_the_limits() -> None:
    fast, late, slow = asked(0.0, 0.1), asked(0.0, 0.3), asked(0.0, 0.1, gap_s=0.05)
    one, run = asked(0.0, 0.1, tokens=1, chunks=1), [fast, late, slow, failed(0.0, "timeout")]
    assert [Limits(200, None).met_by(each) for each in run] == [True, False, True, False]
    assert [Limits(None, 20).met_by(each) for each in run] == [True, True, False, False]
    assert [Limits(200, 20).met_by(each) for each in run] == [True, False, False, False]
    assert Limits(200, 20).met_by(one)
    found = summarise(run, Limits(200, 20))
    assert found["goodput"] == {"requests": 1, "share": 0.25, "requests_per_s": pytest.approx(1 / found["duration_s"])}


def test_first_tokens_by_turn() -> None:
    found = summarise([asked(0.0, 1.0), asked(2.0, 0.2, turn=1), asked(3.0, 0.4, turn=1)], Limits())
    assert [each["mean"] for each in found["ttft_ms_by_turn"]] == pytest.approx([1000, 300])


def test_most_at_once() -> None:
    run = [asked(0.0, 0.1), asked(0.1, 0.1), asked(0.15, 0.3), asked(5.0, 0.1)]
    assert most_at_once(run) == 3
    assert most_at_once(run[:1]) == 1


def test_raw_times_are_in_order_and_from_the_first() -> None:
    found = raw([failed(7.0, "timeout"), asked(5.0, 0.5, chunks=2, gap_s=0.1, tokens=4)])
    assert [each["sent_s"] for each in found] == [0, 2]
    assert found[0]["chunks_s"] == pytest.approx([0.5, 0.6]) and found[0]["ended_s"] == pytest.approx(0.601)
    assert found[0]["completion_tokens"] == 4 and found[0]["failure"] is None
    assert found[1]["failure"] == "timeout"
