"""Tables that keep their figures whole."""

from __future__ import annotations

from rich.table import Column, Table


def whole_table(*headers: str, caption: str, left: bool = False) -> Table:
    """What is too wide for the window goes on below, instead of losing its last digits. left: where the caption stands."""
    columns = (Column(header, overflow="fold") for header in headers)
    return Table(*columns, caption=caption, caption_justify="left" if left else "center")
