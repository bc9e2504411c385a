from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CheckpointError
from headrace.models import qwen3
from headrace.models.spec import AttentionSpec

CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "rope_theta": 1e6, "max_position_embeddings": 40960,
    "sliding_window": 7, "max_window_layers": 2,
}


def windows(**fields: Any) -> list[int | None]:
    found = [layer.mixer for layer in qwen3.spec(CONFIG | fields).layers]
    return [m.window for m in found if isinstance(m, AttentionSpec)]


def test_windows_apply_only_when_they_are_switched_on() -> None:
    assert windows() == [None] * 4
    assert windows(use_sliding_window=True) == [None, None, 7, 7]
    assert windows(use_sliding_window=True, max_window_layers=0) == [7] * 4
    assert windows(use_sliding_window=True, layer_types=["sliding_attention", "full_attention"] * 2) == [7, None] * 2
    assert windows(use_sliding_window=False, layer_types=["sliding_attention"] * 4) == [None] * 4


def test_a_first_window_layer_that_is_no_number_is_named() -> None:
    with pytest.raises(CheckpointError, match="'max_window_layers'"):
        windows(use_sliding_window=True, max_window_layers="x")


def test_layer_types_must_be_as_many_as_layers() -> None:
    with pytest.raises(CheckpointError, match="'layer_types'"):
        windows(layer_types=["full_attention"] * 3)
