from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lab.shape import Shape

SMALL = Shape(vocabulary=64, hidden=32, layers=4, intermediate=32, heads=2, kv_heads=1, head_size=32, key_heads=1,
              value_heads=2, state_size=16, context=128)


@pytest.fixture(scope="session")
def small() -> Shape:
    return SMALL


@pytest.fixture()
def work(tmp_path: Path) -> Path:
    """Tokens that can be learned: runs that count up, from anywhere."""
    random = np.random.default_rng(0)
    for part, count in (("train", 300), ("held-out", 40)):
        for kind in ("prose", "chat"):
            runs = [(random.integers(60) + np.arange(20)) % 60 + 4 for _ in range(count)]
            np.save(tmp_path / f"{part}-{kind}.npy", np.concatenate(runs).astype(np.uint16))
    return tmp_path
