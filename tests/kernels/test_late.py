"""Kernels that are compiled while an engine serves are told by name, and those before it are not."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.kernels import late, nvrtc


@pytest.fixture(autouse=True)
def as_before() -> object:
    yield
    late.expect_compiles()


def test_nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "compile_here", lambda source, options, kind: b"code")
    monkeypatch.setattr(nvrtc, "_version", lambda: "1.0")
    caplog.set_level(logging.WARNING)
    late.expect_compiles()
    assert nvrtc.compiled("text", {"ROWS": 3}, "sm_90", "walk") == b"code" and not caplog.records
    late.warn_of_compiles()
    assert nvrtc.compiled("text", {"ROWS": 3}, "sm_90", "walk") == b"code" and not caplog.records  # from the disk
    nvrtc.compiled("text", {"ROWS": 4}, "sm_90", "walk")
    (record,) = caplog.records
    assert "walk" in record.getMessage() and "'ROWS': 4" in record.getMessage()


def test_triton(caplog: pytest.LogCaptureFixture) -> None:
    knobs = pytest.importorskip("triton").knobs
    late.warn_of_compiles()
    source = SimpleNamespace(name="add_rows", signature={"x": "*bf16"}, constants={(1,): 16})
    given = {"src": source, "metadata": {}, "metadata_group": {}, "times": SimpleNamespace(total=1_500_000)}
    knobs.compilation.listener(**given, cache_hit=True)
    assert not caplog.records
    knobs.compilation.listener(**given, cache_hit=False)
    assert "add_rows" in caplog.text and "1.50 s" in caplog.text
    knobs.compilation.listener = None
