from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.plot import draw, read_curves
from headrace.errors import ConfigError, HeadraceError


def run(concurrency: int | None, rate: float | None, ttft_ms: float | None) -> dict[str, Any]:
    spread = None if ttft_ms is None else {"p50": ttft_ms, "p95": 2 * ttft_ms}
    return {"concurrency": concurrency, "rate": rate, "completion_tokens_per_s": 100.0, "ttft_ms": spread, "tpot_ms": spread}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    file = tmp_path / "mine.json"
    runs = [run(8, None, 30.0), run(1, None, 10.0), run(None, 2.5, 20.0), run(64, None, None)]
    file.write_text(json.dumps({"benchmark": "serve", "results": {"runs": runs}}))
    return file


def test_curves_are_in_the_order_of_the_load(record: Path) -> None:
    users, rates = read_curves([record])
    assert (users.label, users.load, users.loads) == ("mine", "users", [1, 8, 64])
    assert users.values("ttft_ms", "p95") == [20.0, 60.0, None]
    assert users.values("completion_tokens_per_s", "p50") == [100.0] * 3
    assert (rates.load, rates.loads, rates.values("tpot_ms", "p50")) == ("requests/s", [2.5], [20.0])


@pytest.mark.parametrize("text", ["", "[]", '{"benchmark": "step", "results": {}}', '{"benchmark": "serve"}'])
def test_files_that_are_no_record(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json is not a record"):
        read_curves([file])
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_curves([tmp_path / "none.json"])


def test_a_picture_needs_matplotlib(record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HeadraceError, match="pip install"):
        draw(read_curves([record]), tmp_path / "picture.png")


def test_a_picture(record: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(read_curves([record, record]), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="picture.nonsense"):
        draw(read_curves([record]), tmp_path / "picture.nonsense")
