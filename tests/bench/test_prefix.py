"""`headrace bench prefix`: a run on a CPU, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.tiny import make_tiny_checkpoint

from headrace.bench.scenarios import prefix
from headrace.errors import ConfigError


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "llama"])
def test_a_run_on_a_cpu(model_type: str, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", model_type, seed=3)
    settings = prefix.Settings(
        model=str(checkpoint), document=(600,), crowd=("5x300",), question_tokens=7, output_tokens=4, repeat=2, device="cpu",
        context=700, max_seqs=20, chunk_tokens=64, gpu_checkpoint_bytes=400_000,  # room for all that it asks
    )
    found = prefix.run(settings, Console(quiet=True))
    (document,), (crowd,) = found["documents"], found["crowds"]
    assert document["turn_2_tokens"] == 611 and document["cached_tokens"] == 603 and len(document["turns"]) == 2
    assert 0 < document["turn_2_of_turn_1"] < 0.9 and document["uncached_turn_2_ttft_ms"] > document["turn_2_ttft_ms"]
    shared = 300 if model_type == "qwen3_5_text" else 288  # of a page in the midst of which they part no more than others have
    assert 4 * shared <= crowd["cached_tokens"] <= 4 * 300 and crowd["of_parts"] > 0
    assert crowd["ttft_ms"]["count"] == 5
    assert document["interleaved"]["cached_tokens"] == 603 and document["interleaved"]["restores"] == 0


@pytest.mark.parametrize("tier", ["host", "ssd"])
def test_a_document_that_comes_back(tier: str, tmp_path: Path) -> None:
    """From host memory for both documents, or for one of them, with the SSD behind it."""
    checkpoint, cache_bytes = make_tiny_checkpoint(tmp_path / "model", "llama", seed=3), 46 * 16 * 4 * 2 * 2 * 16 * 4
    settings = prefix.Settings(
        model=str(checkpoint), document=(600,), question_tokens=7, output_tokens=4, repeat=1, device="cpu", dtype="float32",
        context=700, chunk_tokens=64, cache_bytes=cache_bytes, ram_cache_bytes=8_000_000 if tier == "host" else cache_bytes,
        ssd_cache=str(tmp_path / "ssd"),
    )
    (document,) = prefix.run(settings, Console(quiet=True))["documents"]
    between = document["interleaved"]
    assert between["cached_tokens"] == 603 and between["restores"] == 1 and between["ssd_hits"] == (tier == "ssd")
    assert set(between["restore_ms"]) == {"host", tier} and min(between["restore_ms"].values()) > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"crowd": ("8",)}, "--crowd 8: two numbers"), ({"crowd": ("0x5",)}, "--crowd 0x5: two numbers"),
        *(({name: value}, f"--{name.replace('_', '-')} must be 1 or more, not 0")
          for name, value in (("document", (9, 0)), ("repeat", 0), ("question_tokens", 0), ("output_tokens", 0))),
    ],
)
def test_what_cannot_be_measured_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prefix.run(prefix.Settings(device="cpu", **fields), Console(quiet=True))


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"document": (600,)}, "--document 600 needs 728 tokens"), ({"crowd": ("2x600",)}, "--crowd 2x600 needs 696")],
)
def test_what_is_too_long_is_named(fields: dict[str, Any], why: str, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "llama", seed=3)
    with pytest.raises(ConfigError, match=why):
        prefix.run(prefix.Settings(model=str(checkpoint), device="cpu", context=690, **fields), Console(quiet=True))
