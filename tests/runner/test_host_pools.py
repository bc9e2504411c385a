"""Which pages are copied together, and memory that there is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM
from headrace.engine import build
from headrace.errors import ConfigError
from headrace.runner.host_pools import runs
from headrace.types import PageCopy


def test_pages_side_by_side_are_one_copy() -> None:
    copies = [PageCopy(0, 5, 2), PageCopy(0, 4, 1), PageCopy(0, 6, 4), PageCopy(1, 7, 5), PageCopy(1, 8, 6), PageCopy(0, 3, 0)]
    assert list(runs(copies)) == [(0, 3, 0, 3), (0, 6, 4, 1), (1, 7, 5, 2)]
    assert list(runs([])) == []


def test_every_page_goes_where_it_should() -> None:
    rng = random.Random(2)
    for _ in range(50):
        targets = rng.sample(range(20), 12)
        copies = [PageCopy(rng.randrange(2), rng.randrange(20), target) for target in targets]
        found = {(group, to + i): at + i for group, at, to, count in runs(copies) for i in range(count)}
        assert found == {(copy.group, copy.target): copy.source for copy in copies}
        assert sum(count for *_, count in runs(copies)) == len(copies)


@pytest.mark.parametrize("given", [10**18, 10**20])
def test_more_host_memory_than_can_be_had(given: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine has it, as far as is known, and does not give it."""
    monkeypatch.setattr(build, "ram_bytes", lambda: given)
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=3)
    with pytest.raises(ConfigError, match="give --ram-cache-bytes less"):
        LLM(str(checkpoint), device="cpu", context=64, max_seqs=1, ram_cache_bytes=given)
