"""Progress while weights are loaded: a bar in a terminal, a line at each quarter elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from headrace.quantities import size

OnProgress = Callable[[int, int], None]
"""Given (bytes loaded, bytes in all)."""


@contextmanager
def loading_progress(console: Console) -> Iterator[OnProgress]:
    """What to call with the progress; the bar is gone afterwards."""
    if not console.is_terminal:
        yield _quarters(console)
        return
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("loading"), *columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None)
        yield lambda done_bytes, total_bytes: progress.update(bar, completed=done_bytes, total=total_bytes)


def _quarters(console: Console) -> OnProgress:
    told = 0

    def tell(done_bytes: int, total_bytes: int) -> None:
        nonlocal told
        quarter = 4 * done_bytes // total_bytes if total_bytes else 4
        if quarter > told:
            told = quarter
            console.print(f"loading: {25 * quarter} % of {size(total_bytes)}")

    return tell
