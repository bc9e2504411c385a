"""Tests of the weights that are shipped, on held-out texts. They fail where the package data is missing."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from headrace.bench.held_out import Text, read_texts
from headrace.engine import requests


@pytest.fixture(scope="session")
def texts() -> list[Text]:
    return read_texts([str(Path(__file__).parents[1] / "data" / "held-out")])


@pytest.fixture(autouse=True)
def small(one_thread: None) -> None:
    """The model is."""


@pytest.fixture()
def drawn_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a seed are given 1, 2, ..."""
    numbers = count(1)
    monkeypatch.setattr(requests.secrets, "randbits", lambda bits: next(numbers))
