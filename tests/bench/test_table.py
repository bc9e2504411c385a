from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from tests.bench.test_summary import asked, failed

from headrace.bench.summary import Limits, summarise
from headrace.bench.table import print_runs
from headrace.bench.whole_table import whole_table

CALM = {"cpu_share": 0.1, "loop_lag_ms": {"p99": 0.4}, "sent_late_ms": None}


def shown(run: list[Any], **changes: Any) -> str:
    base = {"concurrency": 2, "rate": None, "warmup_failures": 0, "client": CALM, "server": {"generation_tokens": 22.0}}
    printed = io.StringIO()
    print_runs(Console(file=printed, width=150), [{**base, **summarise(run, Limits()), **changes}])
    return printed.getvalue()


GOOD = [asked(0.0, 0.1), asked(0.1, 0.2)]


def test_figures_without_doubts() -> None:
    text = shown(GOOD)
    assert text.rstrip().endswith("p50 / p95 / p99"), "nothing is said below the table"
    for cells in (("answered", "2 of 2"), ("(TTFT)", "150 / 195 / 199"), ("(TPOT)", "10 / 10 / 10"), ("chunk", "1")):
        assert any(all(cell in line for cell in cells) for line in text.splitlines()), cells


@pytest.mark.parametrize(
    ("run", "changes", "words"),
    [
        ([*GOOD, failed(0.2, "http 429", "[full]")], {}, "1 of 3 requests failed, http 429: [full]"),
        (GOOD, {"warmup_failures": 2}, "2 requests of the warm-up failed"),
        (GOOD, {"without_text": 1}, "1 answers had no text"),
        (GOOD, {"server": None}, "no counters"),
        (GOOD, {"server": {"generation_tokens": 50.0}}, "counted 50 generated tokens, and told this client of 22"),
        (GOOD, {"client": {**CALM, "cpu_share": 0.95}}, "at 95% of a core"),
        (GOOD, {"client": {**CALM, "loop_lag_ms": {"p99": 12.34}}}, "12.3 ms late"),
    ],
)
def test_doubts_are_told(run: list[Any], changes: dict[str, Any], words: str) -> None:
    assert words in shown(run, **changes)
    assert words not in shown(GOOD)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_figure_loses_digits_in_a_narrow_window(width: int) -> None:
    printed, figures = io.StringIO(), [f"{number}.98765432{number}" for number in range(1, 7)]
    table = whole_table(*(f"figure {number}" for number in range(6)), caption="of six")
    table.add_row(*figures)
    Console(file=printed, width=width).print(table)
    rows = [line.strip("│").split("│") for line in printed.getvalue().splitlines() if line.startswith("│")]
    columns = zip(*rows, strict=True)
    assert ["".join(map(str.strip, column)) for column in columns] == figures
