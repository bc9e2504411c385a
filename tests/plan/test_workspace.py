"""What a step takes beside weights and cache: against what was measured on a GPU, and against what the runner allocates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.plan.test_budget import DELTA, FULL, spec

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.kernels.card import Card
from headrace.kernels.gated_delta_mix import prefill
from headrace.kernels.gated_delta_rule.triton import choose_tiles
from headrace.kernels.gated_delta_verify import MAX_TOKENS
from headrace.kernels.low_bit_linear import around, forms, tile_forms
from headrace.kernels.low_bit_linear import cuda as low_bit_cuda
from headrace.kernels.paged_attention.triton import SPLIT_QUERIES as SPLIT_TOKENS
from headrace.plan import workspace
from headrace.plan.blocks import block_bytes
from headrace.plan.dtypes import Dtypes
from headrace.plan.shapes import declared_model
from headrace.plan.workspace import (
    Sizes,
    kept_bytes,
    layers_bytes,
    low_bit_sums_bytes,
    step_tokens,
    table_bytes,
    upload_bytes,
)
from headrace.runner.batch import Packer
from headrace.runner.draft_batch import DraftPacker
from headrace.runner.page_tables import PageTables
from headrace.runner.pools import allocate_pools
from headrace.runner.progress import draft_slots
from headrace.runner.proposer import Proposer
from headrace.runner.sampler import Sampler
from headrace.types import MOST_DRAFTS

MODEL = declared_model("qwen3.8-27b:w4a16-head8").spec
LONE = Sizes(2048, 1, 0, 2, 132, 90, low_bit=True)


def test_a_lone_prompt_takes_what_was_measured() -> None:
    """On an H200, PyTorch 2.11: 319,310,848 bytes at most while prompts of 2,048 tokens ran through the 27B shape in 4 bits."""
    assert 1 <= layers_bytes(MODEL, LONE) / 319_310_848 < 1.001


def test_many_short_prompts_take_more_than_a_long_one() -> None:
    """Each row's piece of the recurrence is a whole one."""
    elsewhere = replace(LONE, capability=86, low_bit=False)  # Hopper's kernels take less than the MLP
    assert layers_bytes(MODEL, replace(elsewhere, rows=64)) > layers_bytes(MODEL, elsewhere)


@pytest.mark.parametrize(
    ("capability", "low_bit", "more"), [(90, True, 0), (86, True, workspace.DECODED_BYTES), (86, False, 0)]
)
def test_packed_weights_are_decoded_but_on_hopper(capability: int, low_bit: bool, more: int) -> None:
    """Where few tokens' activations leave no room for them."""
    few = replace(LONE, tokens=workspace.FUSED_TOKENS + 1, capability=90)
    found = layers_bytes(MODEL, replace(few, capability=capability, low_bit=low_bit))
    assert abs(found - layers_bytes(MODEL, few) - more) < 3 * 2**23
    fused = replace(few, tokens=workspace.FUSED_TOKENS)
    assert layers_bytes(MODEL, replace(fused, capability=capability, low_bit=low_bit)) < layers_bytes(MODEL, fused) + 2**23


@pytest.mark.parametrize(
    ("chunk", "rows", "drafts", "tokens"), [(2048, 64, 0, 2048), (64, 64, 0, 96), (64, 1, 7, 64), (1, 4, 0, 5)]
)
def test_decoding_rows_leave_half_of_a_chunk(chunk: int, rows: int, drafts: int, tokens: int) -> None:
    assert step_tokens(chunk, rows, drafts) == tokens


@pytest.mark.parametrize("processors", [8, 82, 132])
def test_sums_are_those_of_the_kernels(processors: int) -> None:
    card = Card(90, processors, 0)
    few, flags = forms.few_rows_between_blocks(card)
    assert low_bit_sums_bytes(processors) == 4 * (tile_forms.sums_of(card) + few + flags)


def test_kernels_keep_what_was_measured() -> None:
    """On an H200, PyTorch 2.11, four layers of the 27B shape in 4 bits: 105,046,904 bytes were allocated beyond the tensors of
    an engine's lines. Among them cuBLAS's workspace for the stream that captures, which is counted with the graphs; what is
    left behind the weights, which lie in one piece; and the numbers that are sent with captured steps of up to 16 rows.
    """
    weights = 1_811_358_336
    sent = upload_bytes(1, 16, 17, 0, 0, graphs=True) - upload_bytes(1, 16, 17, 0, 0, graphs=False)
    measured = 105_046_904 - (32 << 20) - (block_bytes(weights) - weights) - sent
    assert abs(measured / kept_bytes(replace(LONE, rows=16)) - 1) < 0.001


def test_kernels_keep_no_sums_of_weights_that_are_not_packed() -> None:
    plain = replace(LONE, low_bit=False)
    sums = kept_bytes(LONE) - kept_bytes(plain)
    assert low_bit_sums_bytes(132) <= sums < low_bit_sums_bytes(132) + 2**20 + 512
    assert 32 << 20 < kept_bytes(plain) < 33 << 20
    assert kept_bytes(replace(plain, capability=86)) < 9 << 20


def test_constants_are_those_of_the_kernels() -> None:
    assert workspace.DECODED_BYTES == low_bit_cuda.WORKSPACE_BYTES
    assert workspace.FUSED_TOKENS == low_bit_cuda.MOST_FUSED_ROWS
    assert workspace.SPLIT_TOKENS == SPLIT_TOKENS
    for dtype, size in ((torch.float16, workspace.PIECE_TOKENS), (torch.float32, workspace.WIDE_PIECE_TOKENS)):
        assert choose_tiles(128, 128, dtype).size == size
    assert MOST_DRAFTS + 1 == MAX_TOKENS
    assert (workspace.UNIT_BYTES, workspace.HEAD_BYTES) == (prefill.UNIT_BYTES, prefill.HEAD_BYTES)
    assert (workspace.CHUNK_HEAD_DIM, workspace.CHUNK_GROUPS) == (prefill.HEAD_DIM, prefill.GROUPS)
    assert prefill.SIZE == workspace.PIECE_TOKENS
    sums, blocks = around.between_blocks()
    assert workspace.FEW_OUTPUTS_BYTES == 4 * (sums + blocks)


@pytest.mark.parametrize("padding", [False, True])
def test_tables_are_as_large_as_planned(padding: bool) -> None:
    model = spec(FULL, DELTA)
    layout = CacheLayout(cache_groups(model), 16, (40,), 5, padding)
    tables = PageTables(layout, 300, torch.device("cpu"))
    assert tables.entries.nbytes == table_bytes(1, layout.pool_slots, 300, 0, 16)
    packer = Packer(tables, 70, layout.pool_slots, 40, torch.device("cpu"))
    assert packer.nbytes == upload_bytes(1, 5, layout.pool_slots, 70, 40, graphs=False)


def test_numbers_sent_with_drafts_are_as_many_as_planned() -> None:
    model = spec(FULL, DELTA)
    layout = CacheLayout(cache_groups(model), 16, (40,), 5, True, 3)
    dtypes, device = Dtypes("float32", "float32", "float32", ()), torch.device("cpu")
    pools = allocate_pools(model, layout, dtypes, device)
    sampler = Sampler(layout.pool_slots, model.vocab_size, device, torch.float32)
    slots, tables = draft_slots(pools, sampler, device), PageTables(layout, 300, device)
    packer = DraftPacker(tables, slots, Proposer(None, slots, tables, sampler, 3), 90, layout.pool_slots, 40, device)
    assert packer.nbytes == upload_bytes(1, 5, layout.pool_slots, 90, 40, graphs=False, drafts=True)
