"""The figures of `headrace bench serve` for people: a column for each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from headrace.bench.whole_table import whole_table

MAX_LAG_MS = 5.0
MAX_CPU_SHARE = 0.8
"""Beyond either, the client is part of what it measures."""

Run = Mapping[str, Any]


def print_runs(console: Console, runs: Sequence[Run]) -> None:
    """A table, and below it what makes its figures doubtful."""
    table = whole_table("", *(_load(run) for run in runs), caption="times in ms: p50 / p95 / p99", left=True)
    columns = [dict(_rows(run)) for run in runs]
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, "") for column in columns))
    console.print(table)
    for run in runs:
        for doubt in _doubts(run):
            console.print(f"[yellow]{_load(run)}: {escape(doubt)}[/]")


def _load(run: Run) -> str:
    if run["concurrency"]:
        return f"{run['concurrency']} user{'s' if run['concurrency'] > 1 else ''}"
    return f"{run['rate']:g}/s"


def _rows(run: Run) -> Iterator[tuple[str, str]]:
    yield "answered", f"{run['answered']} of {run['requests']}"
    for kind, count in run["failures"].items():
        yield f"failed: {kind}", str(count)
    if run["shorter_than_asked"]:
        yield "shorter than asked", str(run["shorter_than_asked"])
    yield "duration, s", _number(run["duration_s"])
    yield "requests/s", _number(run["requests_per_s"])
    yield "prompt tokens/s", _number(run["prompt_tokens_per_s"])
    yield "output tokens/s", _number(run["completion_tokens_per_s"])
    yield "first token (TTFT)", _times(run["ttft_ms"])
    for turn, times in enumerate(run.get("ttft_ms_by_turn", ()), 1):
        yield f"  of turn {turn}", _times(times)
    yield "per token after it (TPOT)", _times(run["tpot_ms"])
    yield "between chunks (ITL)", _times(run["itl_ms"])
    yield "tokens in a chunk", _number(run["tokens_per_chunk"])
    yield "whole answer (E2E)", _times(run["e2e_ms"])
    if "goodput" in run:
        yield "within the limits", f"{run['goodput']['share']:.0%}, {_number(run['goodput']['requests_per_s'])}/s"
    yield "cached prompt tokens", _share(run["cached_tokens"], run["prompt_tokens"])
    yield from _server_rows(run["server"] or {})


def _server_rows(server: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "preemptions" in server:
        yield "preemptions", f"{server['preemptions']:.0f}"
    if server.get("drafted_tokens"):
        yield "drafts accepted", _share(server.get("accepted_tokens"), server["drafted_tokens"])
    if "kv_used_share" in server:
        yield "KV used, mean and most", f"{server['kv_used_share']['mean']:.1%}, {server['kv_used_share']['max']:.1%}"
    if "requests_running" in server:
        yield "running, mean and most", f"{server['requests_running']['mean']:.1f}, {server['requests_running']['max']:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else " / ".join(_number(spread[name]) for name in ("p50", "p95", "p99"))


def _share(part: float | None, whole: float) -> str:
    return "-" if part is None or not whole else f"{part:.0f} ({part / whole:.0%})"


def _doubts(run: Run) -> Iterator[str]:
    for kind, message in run["failure_examples"].items():
        yield f"{run['failures'][kind]} of {run['requests']} requests failed, {kind}: {message}"
    if run["warmup_failures"]:
        yield f"{run['warmup_failures']} requests of the warm-up failed"
    if run["without_text"]:
        yield f"{run['without_text']} answers had no text, so that their first token could not be seen"
    server, client = run["server"], run["client"]
    if server is None:
        yield "the server shows no counters at /metrics"
    elif not run["failures"] and (made := server.get("generation_tokens")) not in (None, run["completion_tokens"]):
        yield f"the server counted {made:.0f} generated tokens, and told this client of {run['completion_tokens']}"
    lag = client["loop_lag_ms"]
    if client["cpu_share"] > MAX_CPU_SHARE or (lag and lag["p99"] > MAX_LAG_MS):
        late = f"{lag['p99']:.1f} ms late (p99)" if lag else "late"
        yield f"the client itself was {late}, at {client['cpu_share']:.0%} of a core: differences of this size mean nothing"
