"""What a drafter's own directory says it takes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from tests.plan.test_dflash import VOCABULARY, target
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace.config import EngineConfig
from headrace.errors import CheckpointError, ConfigError
from headrace.hardware import Hardware
from headrace.plan.auto_drafter import Drafting, resolve_drafter
from headrace.plan.drafters import NO_DRAFTER, RING_TOKENS, drafter_memory
from headrace.plan.dtypes import Dtypes
from headrace.plan.published import published_model
from headrace.plan.speculation import drafter_for
from headrace.types import MOST_DRAFTS

MODEL = replace(published_model("qwen3.8-27b:w4a16"), spec=target())
DTYPES = Dtypes("bfloat16", "bfloat16", "float16")
CONFIG = dflash_config(VOCABULARY)


def test_a_directory_is_read(tmp_path: Path) -> None:
    tensors = dflash_tensors(CONFIG)
    found = drafter_memory(MODEL, "dflash", None, write_dflash(tmp_path / "drafter", CONFIG, tensors), DTYPES)
    numbers = sum(tensor.numel() for tensor in tensors.values())
    norms = sum(tensor.numel() for name, tensor in tensors.items() if "norm" in name)
    assert [line.bytes for line in found.lines] == [2 * numbers, 2 * norms]  # bfloat16, and norms in float32
    assert (found.drafts, found.taps) == (3, 2)
    assert found.bytes_per_sequence(DTYPES) == 2 * 24 * 2 * 2 * 8 * 2 and found.bytes_per_token(DTYPES) == 0
    assert sum(prod(state.shape) for state in found.cache.states) == 24 + 2 * 24 * 2 * 2 * 8  # which tokens, keys and values
    assert found.slot_bytes(32, DTYPES) == RING_TOKENS * (2 * 32 * 2 + 8)


def test_a_drafter_of_full_context_has_room_for_the_longest_sequence(tmp_path: Path) -> None:
    config = dflash_config(VOCABULARY, layer_types=["full_attention"] * 2)
    folder = write_dflash(tmp_path / "drafter", config, dflash_tensors(config))
    for context, tokens in ((100, 100), (None, MODEL.spec.max_context)):
        found = drafter_memory(MODEL, "dflash", 2, folder, DTYPES, context)
        assert (found.drafts, found.bytes_per_token(DTYPES)) == (2, 0)
        assert found.bytes_per_sequence(DTYPES) == tokens * 2 * 2 * 2 * 8 * 2


def test_auto_takes_the_drafter_that_is_given_if_it_fits(tmp_path: Path) -> None:
    folder = write_dflash(tmp_path / "drafter", CONFIG, dflash_tensors(CONFIG))
    config, cpu = EngineConfig(speculate="auto", drafter=str(folder)), Hardware("cpu", "CPU", 1 << 34, 1 << 34)
    expected = drafter_memory(MODEL, "dflash", None, folder, DTYPES)
    assert resolve_drafter(MODEL, config, cpu, DTYPES) == Drafting(expected)
    larger = replace(MODEL, spec=target(vocab_size=VOCABULARY + 5))
    found = resolve_drafter(larger, config, cpu, DTYPES)
    assert found.memory == NO_DRAFTER and found.broken
    assert f"drafter {folder}: its vocab_size is 60, that of the target 65" in found.note
    with pytest.raises(CheckpointError, match="its vocab_size is 60, that of the target 65"):
        drafter_for(larger, replace(config, speculate="dflash"), DTYPES)


def test_a_long_block_drafts_no_more_than_a_row_may_have(tmp_path: Path) -> None:
    config = dflash_config(VOCABULARY, sliding_window=64, inner={"block_size": 40})
    folder = write_dflash(tmp_path / "drafter", config, dflash_tensors(config))
    assert drafter_memory(MODEL, "dflash", None, folder, DTYPES).drafts == MOST_DRAFTS


def test_what_cannot_be_is_named(tmp_path: Path) -> None:
    folder = write_dflash(tmp_path / "drafter", CONFIG, dflash_tensors(CONFIG))
    with pytest.raises(ConfigError, match="draft_tokens 4: the drafter proposes 3 at most, a block of 4 but one"):
        drafter_memory(MODEL, "dflash", 4, folder, DTYPES)
    with pytest.raises(ConfigError, match="needs --drafter DIR: the published drafter is for Qwen3.8-27B"):
        drafter_memory(MODEL, "dflash", None, None, DTYPES)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="drafter/model.safetensors is missing"):
        drafter_memory(MODEL, "dflash", None, folder, DTYPES)
