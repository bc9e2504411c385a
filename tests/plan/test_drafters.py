"""What a drafter's own directory says it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.errors import CheckpointError
from headrace.plan.drafters import RING_TOKENS, drafter_memory
from headrace.plan.dtypes import Dtypes
from headrace.plan.published import published_model

MODEL = published_model("qwen3.8-27b:w4a16")
DTYPES = Dtypes("bfloat16", "bfloat16", "float16")
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 128,
    "sliding_window": 512, "dflash_config": {"block_size": 16, "target_layer_ids": [5, 19]},
}


def write(folder: Path, **changed: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    save_file({"fc.weight": np.zeros((4, 8), np.float16), "norm.weight": np.zeros(8, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_directory_is_read(tmp_path: Path) -> None:
    found = drafter_memory(MODEL, "dflash", None, write(tmp_path / "drafter"))
    assert found.line is not None and found.line.bytes == 4 * 8 * 2 + 8 * 4
    assert (found.drafts, found.taps) == (15, 2)
    assert found.bytes_per_sequence(DTYPES) == 3 * 512 * 2 * 2 * 16 * 2 and found.bytes_per_token(DTYPES) == 0
    assert found.slot_bytes(5120, DTYPES) == (RING_TOKENS + 1) * 2 * 5120 * 2


def test_a_drafter_of_full_context_costs_by_the_token(tmp_path: Path) -> None:
    found = drafter_memory(MODEL, "dflash", 3, write(tmp_path / "drafter", sliding_window=None))
    assert found.drafts == 3
    assert (found.bytes_per_token(DTYPES), found.bytes_per_sequence(DTYPES)) == (3 * 2 * 2 * 16 * 2, 0)


def test_a_directory_that_lacks_something_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="target_layer_ids must list"):
        drafter_memory(MODEL, "dflash", None, write(tmp_path / "untapped", dflash_config={}))
    empty = write(tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="empty holds no safetensors"):
        drafter_memory(MODEL, "dflash", None, empty)
