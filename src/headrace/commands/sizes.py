"""Byte counts for people."""

from __future__ import annotations


def size(count_bytes: float) -> str:
    """1536 -> "1.5 KiB"; three digits are enough to compare."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < 1024:
            return f"{count_bytes:.0f} B" if unit == "B" else f"{count_bytes:.3g} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:.3g} TiB"
