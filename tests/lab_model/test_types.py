"""What 8-bit keys and values and 16-bit states cost the shipped weights in perplexity, and that drafts cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from headrace.bench.held_out import Text
from headrace.bench.scenarios import quality
from headrace.engine.tokenizer import load_tokenizer

MOST = {("fp16", "fp32"): 2e-3, ("int8", "fp32"): 2e-3, ("fp8", "fp32"): 2e-3, ("bf16", "fp16"): 5e-4}
"""Of the perplexity, over that of bf16 keys and values and fp32 states."""


@pytest.fixture(scope="module")
def settings(lab_model: Path, texts: list[Text], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tokenizer, folder = load_tokenizer(lab_model), tmp_path_factory.mktemp("ids")
    files = []
    for kind in sorted({text.kind for text in texts}):
        files.append(folder / f"{kind}.npy")
        np.save(files[-1], np.array([token for text in texts if text.kind == kind for token in tokenizer.encode(text.text)]))
    return {"model": str(lab_model), "text": tuple(map(str, files)), "device": "cpu", "dtype": "float32", "max_seqs": 8}


def test_types_lose_less_than_they_may(settings: dict[str, Any]) -> None:
    types = ("bf16/fp32", *("/".join(each) for each in MOST))
    found = quality.run(
        quality.Settings(**settings, types=types, way=("prompts",), tokens=2048, length=512), Console(width=120)
    )["followed"]
    for each in found[1:]:
        assert each["over_reference"] < MOST[each["kv"], each["state"]], each
    assert any(each["error"] > 0 for each in found)


def test_drafts_lose_nothing(settings: dict[str, Any]) -> None:
    given = quality.Settings(**settings, types=("bf16/fp16",), way=("steps", "drafts"), tokens=512, length=128)
    steps, drafts = quality.run(given, Console(width=120))["followed"]
    assert drafts["accepted"] > 2 and abs(drafts["over_steps"]) < 1e-3 and steps["tokens"] == drafts["tokens"]
