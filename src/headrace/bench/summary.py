"""The figures of a run, from its answers. Every request is in them: as an answer, or as a failure of a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.load import Asked

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer may take at most to count as good; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def met_by(self, asked: Asked) -> bool:
        answer = asked.answer
        return (
            answer.failure is None
            and (self.ttft_ms is None or (answer.ttft_s is not None and answer.ttft_s * 1e3 <= self.ttft_ms))
            and (self.tpot_ms is None or answer.tpot_s is None or answer.tpot_s * 1e3 <= self.tpot_ms)
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of ascending values, at least one; between two of them, on the straight line from one to the other."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def spread_ms(values_s: Iterable[float | None]) -> dict[str, float] | None:
    """Count, mean, percentiles and maximum in milliseconds; None without values. Nones are left out."""
    ordered = sorted(value * 1e3 for value in values_s if value is not None)
    if not ordered:
        return None
    percentiles = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {"count": len(ordered), "mean": sum(ordered) / len(ordered), **percentiles, "max": ordered[-1]}


def summarise(asked: Sequence[Asked], limits: Limits) -> dict[str, Any]:
    """Figures of a run of at least one request, as JSON values. Rates are per second of the time from the first request's
    sending to the last one's end.

    Tokens are the server's counts of the requests that were answered; cached_tokens is None if it never told any. itl_ms is the
    time between chunks; how many tokens a chunk had on average is tokens_per_chunk.
    """
    good = [each for each in asked if each.answer.failure is None]
    duration_s = max(each.answer.ended_s for each in asked) - min(each.answer.sent_s for each in asked)
    prompt = sum(each.answer.prompt_tokens or 0 for each in good)
    completion = sum(each.answer.completion_tokens or 0 for each in good)
    cached = [each.answer.cached_tokens for each in good if each.answer.cached_tokens is not None]
    chunks = sum(len(each.answer.chunks_s) for each in good)
    return {
        "duration_s": duration_s,
        "requests": len(asked),
        "answered": len(good),
        "failures": dict(Counter(each.answer.failure.kind for each in asked if each.answer.failure)),
        "failure_examples": {each.answer.failure.kind: each.answer.failure.message for each in asked if each.answer.failure},
        "shorter_than_asked": sum(_is_short(each) for each in good),
        "without_text": sum(not each.answer.chunks_s for each in good),
        "most_at_once": most_at_once(asked),
        "prompt_tokens": prompt,
        "cached_tokens": sum(cached) if cached else None,
        "completion_tokens": completion,
        "tokens_per_chunk": completion / chunks if chunks else None,
        **_rates(duration_s, requests=len(good), prompt_tokens=prompt, completion_tokens=completion),
        **_times(good),
        **(_goodput(asked, limits, duration_s) if limits else {}),
    }


def _is_short(asked: Asked) -> bool:
    return asked.max_tokens is not None and (asked.answer.completion_tokens or 0) < asked.max_tokens


def _rates(duration_s: float, **counts: int) -> dict[str, float | None]:
    return {f"{name}_per_s": count / duration_s if duration_s else None for name, count in counts.items()}


def _times(good: Sequence[Asked]) -> dict[str, Any]:
    times: dict[str, Any] = {
        "ttft_ms": spread_ms(each.answer.ttft_s for each in good),
        "tpot_ms": spread_ms(each.answer.tpot_s for each in good),
        "itl_ms": spread_ms(gap for each in good for gap in each.answer.gaps_s),
        "e2e_ms": spread_ms(each.answer.e2e_s for each in good),
    }
    turns = sorted({each.turn for each in good})
    if len(turns) > 1:
        times["ttft_ms_by_turn"] = [spread_ms(each.answer.ttft_s for each in good if each.turn == turn) for turn in turns]
    return times


def _goodput(asked: Sequence[Asked], limits: Limits, duration_s: float) -> dict[str, Any]:
    met = sum(limits.met_by(each) for each in asked)
    return {"goodput": {"requests": met, "share": met / len(asked), **_rates(duration_s, requests=met)}}


def most_at_once(asked: Sequence[Asked]) -> int:
    """Requests that were under way at the same moment, at most."""
    edges = [(each.answer.sent_s, 1) for each in asked] + [(each.answer.ended_s, -1) for each in asked]
    now = most = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


def raw(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Every request's own figures, in the order they were sent; times in seconds from the first one's."""
    ordered = sorted(asked, key=lambda each: each.answer.sent_s)
    return [_raw(each, ordered[0].answer.sent_s) for each in ordered]


def _raw(asked: Asked, began_s: float) -> dict[str, Any]:
    answer = asked.answer
    return {
        "conversation": asked.conversation,
        "turn": asked.turn,
        "sent_s": answer.sent_s - began_s,
        "chunks_s": [at_s - began_s for at_s in answer.chunks_s],
        "ended_s": answer.ended_s - began_s,
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "completion_tokens": answer.completion_tokens,
        "finish_reason": answer.finish_reason,
        "failure": answer.failure.kind if answer.failure else None,
    }
