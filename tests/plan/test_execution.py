"""What loop and graphs become on a device, and what graphs cost in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.plan import execution
from headrace.plan.budget import Budget, make_budget
from headrace.plan.drafters import NO_DRAFTER, drafter_memory
from headrace.plan.dtypes import Dtypes
from headrace.plan.execution import chunk_tokens, resolve_execution
from headrace.plan.graph_rows import (
    EIGHT_BIT_NODES,
    FOUR_BIT_NODES,
    PLAIN_NODES,
    StepNodes,
    draft_widths,
    graph_bytes,
    prompt_shapes,
    row_buckets,
)
from headrace.plan.shapes import declared_model
from headrace.plan.speculation import drafter_extras
from headrace.plan.state_memory import state_bytes_per_sequence
from headrace.plan.workspace import ASSUMED_PROCESSORS, Sizes, layers_bytes, library_bytes

GIB = 2**30
CPU = Hardware("cpu", "CPU", 8 * GIB, 6 * GIB)
GPU = Hardware("cuda", "Test 24 GB", 24 * GIB, 23 * GIB)
MODEL = declared_model("qwen3.8-27b:w4a16")
BF16 = Dtypes("bfloat16", "bfloat16", "float16")


@pytest.fixture(autouse=True)
def triton_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("hardware", "settings", "depth", "graphs"),
    [
        (CPU, {}, 1, False), (GPU, {}, 2, True), (CPU, {"loop": "overlapped"}, 2, False), (GPU, {"loop": "plain"}, 1, True),
        (GPU, {"graphs": "off"}, 2, False), (GPU, {"graphs": "on"}, 2, True), (CPU, {"graphs": "off"}, 1, False),
    ],
)
def test_auto_is_what_the_device_is_good_at(hardware: Hardware, settings: dict[str, str], depth: int, graphs: bool) -> None:
    found = resolve_execution(EngineConfig(**settings), hardware, "bfloat16")  # type: ignore[arg-type]
    assert (found.depth, found.graphs) == (depth, graphs)
    assert [note.split(":")[0] for note in found.notes] == ["loop", "graphs"]


def test_fast_cards_take_more_of_a_prompt_at_once() -> None:
    chunks = [chunk_tokens(EngineConfig(), replace(GPU, capability=each)) for each in (80, 86, 89, 90, 100, 120)]
    assert chunks == [1024, 1024, 1024, 2048, 2048, 1024] and chunk_tokens(EngineConfig(), CPU) == 1024
    hopper = replace(GPU, capability=90)
    assert chunk_tokens(EngineConfig(chunk_tokens=7), hopper) == 7
    budgets = [make_budget(MODEL.spec, MODEL.weight_map, each, EngineConfig(max_seqs=8), BF16) for each in (GPU, hopper)]
    assert [found.chunk_tokens for found in budgets] == [1024, 2048]
    few, many = (next(line.bytes for line in found.lines if line.name == "workspace") for found in budgets)
    assert 1024 * 5120 * 2 < many - few < 1024 * 2**20


def test_graphs_that_cannot_be_are_refused_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        resolve_execution(EngineConfig(graphs="on"), CPU, "bfloat16")
    with pytest.raises(ConfigError, match="float64"):
        resolve_execution(EngineConfig(graphs="on"), GPU, "float64")
    assert not resolve_execution(EngineConfig(), GPU, "float64").graphs
    monkeypatch.setattr(execution, "find_spec", lambda name: None)
    assert not resolve_execution(EngineConfig(), GPU, "bfloat16").graphs
    with pytest.raises(ConfigError, match="Triton is not installed"):
        resolve_execution(EngineConfig(graphs="on"), GPU, "bfloat16")


def with_prompts(drafts: int) -> int:
    """Bytes of the graphs of 8 rows and of a chunk of 1,024 tokens."""
    shapes = prompt_shapes(8, 1024, 4096)
    sizes = Sizes(1032, 8, drafts, 2, GPU.processors or ASSUMED_PROCESSORS, GPU.capability, True).captured(shapes[-1])
    return graph_bytes(
        MODEL.spec, BF16, 8, drafts, 256, low_bit=True, library_bytes=library_bytes(GPU.capability), prompts=len(shapes),
        prompt_bytes=layers_bytes(MODEL.spec, sizes), nodes=FOUR_BIT_NODES,
    )


def budget(graphs: str) -> Budget:
    config = EngineConfig(graphs=graphs, max_seqs=8, context=4096)
    return make_budget(MODEL.spec, MODEL.weight_map, GPU, config, BF16)


def test_a_budget_with_graphs_has_their_lines_and_stays_within_its_limit() -> None:
    without, within = budget("off"), budget("on")
    lines = {line.name: line.bytes for line in within.lines}
    assert lines["graphs"] == with_prompts(0)
    assert lines["padding"] == state_bytes_per_sequence(MODEL.spec, BF16) + 16 * 65_536
    assert not {"graphs", "padding"} & {line.name for line in without.lines}
    limit = int(24 * GIB * 0.9) - GIB
    assert without.total_bytes <= limit and within.total_bytes <= limit
    assert (within.layout.slots, within.layout.pool_slots, without.layout.pool_slots) == (8, 9, 8)
    assert within.layout.pool_pages == (within.layout.pages[0] + 1,)


def test_graphs_take_more_the_more_rows_they_have() -> None:
    sizes = [graph_bytes(MODEL.spec, BF16, rows) for rows in (1, 8, 64, 256)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 4
    logits = MODEL.spec.vocab_size * 2
    prompts = graph_bytes(MODEL.spec, BF16, 64, prompts=14, prompt_bytes=10**8)
    assert prompts - sizes[2] > 14 * 64 * 2000 and prompts < sizes[2] + 10**8 + 14 * 64 * 60_000
    assert all(graph_bytes(MODEL.spec, BF16, rows) > rows * logits for rows in (1, 64, 256))
    assert all(later > earlier for earlier, later in zip(row_buckets(500), row_buckets(500)[1:], strict=False))


@pytest.mark.parametrize(("rows", "drafts", "coin", "measured"), [
    (64, 0, False, 150_994_944), (8, 7, False, 165_675_008), (64, 7, False, 450_887_680), (64, 7, True, 520_093_696),
])
def test_graphs_take_what_was_measured(rows: int, drafts: int, coin: bool, measured: int) -> None:
    """On an H200, of the 27B shape in 4 bits with a head of 8, PyTorch's memory and the driver's; the last with lookup."""
    nodes = replace(FOUR_BIT_NODES, observes=8, proposes=(20,)) if coin else FOUR_BIT_NODES
    found = graph_bytes(
        MODEL.spec, BF16, rows, drafts, 256, low_bit=True, library_bytes=library_bytes(90), nodes=nodes, coin=coin
    )
    assert measured < found < 1.25 * measured


def test_graphs_with_prompts_take_what_was_measured() -> None:
    """There too, of 16 shapes of up to 512 tokens."""
    shape = prompt_shapes(64, 2048, 10**5)[-1]
    prompt_bytes = layers_bytes(MODEL.spec, Sizes(2112, 64, 0, 2, 132, 90, True).captured(shape))
    found = graph_bytes(
        MODEL.spec, BF16, 64, low_bit=True, library_bytes=library_bytes(90), prompts=16, prompt_bytes=prompt_bytes,
        nodes=FOUR_BIT_NODES,
    )
    assert shape.tokens == 512 and 318_767_104 < found < 1.1 * 318_767_104


@pytest.mark.parametrize(("name", "nodes"), [
    ("qwen3.8-27b:w4a16-head8", FOUR_BIT_NODES), ("qwen3.8-27b:bf16", PLAIN_NODES),
    ("qwen3.8-27b:w8a8", EIGHT_BIT_NODES), ("qwen3.8-27b:w4a8-fp8", EIGHT_BIT_NODES),
    ("smollm2-135m:bf16", PLAIN_NODES),
])
def test_graphs_are_planned_by_what_weights_are_packed(name: str, nodes: StepNodes) -> None:
    model, card = declared_model(name), replace(GPU, memory_bytes=200 * GIB, free_bytes=190 * GIB)
    config = EngineConfig(graphs="on", max_seqs=8, context=4096, chunk_tokens=1024)
    extras = drafter_extras(model, config, BF16, NO_DRAFTER)
    made = make_budget(model.spec, model.weight_map, card, config, BF16, extras=extras)
    lines = {line.name: line.bytes for line in made.lines}
    shapes, low_bit = prompt_shapes(8, 1024, 4096), nodes is not PLAIN_NODES
    sizes = Sizes(1032, 8, 0, 2, card.processors or ASSUMED_PROCESSORS, card.capability, low_bit).captured(shapes[-1])
    assert lines["graphs"] == graph_bytes(
        model.spec, BF16, 8, 0, 256, low_bit=low_bit, library_bytes=library_bytes(card.capability),
        prompts=len(shapes), prompt_bytes=layers_bytes(model.spec, sizes), nodes=nodes,
    )


def test_no_library_is_planned_where_all_weights_are_packed() -> None:
    packed = replace(MODEL.weight_map, weights=tuple(
        weight for weight in declared_model("qwen3.8-27b:w4a16-head8").weight_map.weights
        if weight.dtype or len(weight.shape) != 2 or weight.target == "embedding.weight"
    ))
    config = EngineConfig(graphs="on", max_seqs=8, context=4096)
    with_plain, without = (
        next(line.bytes for line in make_budget(MODEL.spec, each, GPU, config, BF16).lines if line.name == "graphs")
        for each in (MODEL.weight_map, packed)
    )
    assert with_plain - without == library_bytes(GPU.capability)


@pytest.mark.parametrize("method", ["lookup", "mtp", "dflash"])
def test_a_drafters_graphs_are_planned(method: Literal["lookup", "mtp", "dflash"]) -> None:
    memory = drafter_memory(MODEL, method, None, None, BF16)
    nodes = replace(FOUR_BIT_NODES, observes=memory.observes, proposes=memory.proposes)
    without, found = (
        graph_bytes(MODEL.spec, BF16, 8, 7, 256, nodes=each, taps=memory.taps) for each in (FOUR_BIT_NODES, nodes)
    )
    assert memory.observes > 0 and len(memory.proposes) == (4 if method == "mtp" else 1)
    sizes, widths = len(row_buckets(8)), 1 + len(draft_widths(7))
    assert found - without > sizes * (widths * memory.observes + sum(memory.proposes)) * 4_000
    tapped = graph_bytes(MODEL.spec, BF16, 8, 7, 256, taps=5) - graph_bytes(MODEL.spec, BF16, 8, 7, 256)
    assert tapped >= 64 * 5 * MODEL.spec.hidden * 2


def test_graphs_of_drafts_take_memory_for_as_many_tokens() -> None:
    plain, drafted = (graph_bytes(MODEL.spec, BF16, 64, drafts, 256) for drafts in (0, 7))
    assert drafted - plain > (256 - 64) * MODEL.spec.vocab_size * 2 + 64 * 7 * 8 * MODEL.spec.hidden * 4
    config = EngineConfig(graphs="on", max_seqs=8, context=4096)
    lines = {line.name: line for line in make_budget(MODEL.spec, MODEL.weight_map, GPU, config, BF16, 3).lines}
    assert lines["graphs"].bytes == with_prompts(3)
    assert "3 drafts" in lines["graphs"].why
