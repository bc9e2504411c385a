"""Byte counts for people."""

from __future__ import annotations


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
