from __future__ import annotations

import pytest

from headrace.quantities import counted, exact_size, size


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (101 << 20, "101 MiB"), (1000 << 20, "1000 MiB"),
        (24 << 30, "24.0 GiB"), (2048 << 40, "2048 TiB"),
    ],
)  # fmt: skip
def test_sizes(count_bytes: int, text: str) -> None:
    assert size(count_bytes) == text


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 bytes"), (1, "1 byte"), (65_536, "65,536 bytes"), (2**20, "1,048,576 bytes (1.0 MiB)"),
        (24_696_061_952, "24,696,061,952 bytes (23.0 GiB)"),
    ],
)  # fmt: skip
def test_exact_sizes(count_bytes: int, text: str) -> None:
    assert exact_size(count_bytes) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "page", "0 pages"), (1, "page", "1 page"), (2, "page", "2 pages"), (65_536, "token", "65,536 tokens"),
     (1, "state slot", "1 state slot"), (3, "state slot", "3 state slots")],
)
def test_counts(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
