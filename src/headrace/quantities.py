"""Counts and sizes for people: the one way that messages say them."""

from __future__ import annotations

WHOLE_BYTES = 2**20
"""Fewer are said as they are."""


def size(count_bytes: float) -> str:
    """1536 -> "1.5 KiB", in binary units."""
    if count_bytes < 1024:
        return f"{count_bytes:.0f} B"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = 0
    while count_bytes >= 1024 and power < len(units):
        count_bytes /= 1024
        power += 1
    return f"{count_bytes:.{0 if count_bytes >= 100 else 1}f} {units[power - 1]}"


def exact_size(count_bytes: int) -> str:
    """1536 -> "1,536 bytes", 24_696_061_952 -> "24,696,061,952 bytes (23.0 GiB)": to be read, compared and given to a flag."""
    exact = counted(count_bytes, "byte")
    return exact if count_bytes < WHOLE_BYTES else f"{exact} ({size(count_bytes)})"


def counted(count: int, noun: str) -> str:
    """(1, "page") -> "1 page", (2048, "page") -> "2,048 pages"; of a noun of several words the last becomes plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
