from __future__ import annotations

import pytest

from headrace.commands.sizes import size


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (101 << 20, "101 MiB"), (1000 << 20, "1000 MiB"),
        (24 << 30, "24.0 GiB"), (2048 << 40, "2048 TiB"),
    ],
)  # fmt: skip
def test_sizes(count_bytes: int, text: str) -> None:
    assert size(count_bytes) == text
