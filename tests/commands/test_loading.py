from __future__ import annotations

import io

from rich.console import Console

from headrace.commands.loading import loading_progress


def shown(*, terminal: bool) -> str:
    screen = io.StringIO()
    with loading_progress(Console(file=screen, force_terminal=terminal, width=100)) as on_progress:
        for done in range(0, 1001, 10):
            on_progress(done << 20, 1000 << 20)
    return screen.getvalue()


def test_elsewhere_than_in_a_terminal_each_quarter_is_a_line() -> None:
    assert shown(terminal=False).splitlines() == [f"loading: {percent} % of 1000 MiB" for percent in (25, 50, 75, 100)]


def test_a_terminal_gets_a_bar() -> None:
    assert "1,000.0/1,000.0 MiB" in shown(terminal=True)


def test_nothing_to_load_is_no_error() -> None:
    with loading_progress(Console(file=io.StringIO())) as on_progress:
        on_progress(0, 0)
