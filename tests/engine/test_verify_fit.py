"""`--verify-fit`: that it fills everything, runs the largest steps, and refuses where more than the plan is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripted_drafter import ScriptedDrafter
from tests.support.tiny import make_tiny_checkpoint

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.config import EngineConfig
from headrace.engine.build import build_engine, load_engine
from headrace.engine.model_source import find_model
from headrace.engine.verify_fit import Taken, check, compare, full_lengths, kernel_bytes, run_largest_steps
from headrace.errors import ConfigError
from headrace.plan import shapes
from headrace.plan.budget import Budget, BudgetLine
from headrace.plan.demo import demo_model_path
from headrace.plan.shapes import SHAPES, declared_model
from headrace.runner.graphs import MemoryCounts
from headrace.runner.runner import Runner
from headrace.types import SamplingParams, StepPlan, StepResult

CONFIG = EngineConfig(device="cpu", verify_fit=True, max_seqs=3, context=256, chunk_tokens=64)
GROUP = CacheGroup(0, None, (0,), 8, 2)


def budget(pages: int, seqs: int, context: int, chunk: int = 32, drafts: int = 0) -> Budget:
    return Budget((), CacheLayout((GROUP,), 16, (pages,), seqs, drafts > 0, drafts), context, seqs, chunk, ())


def test_the_demo_model_fits_and_every_line_is_told() -> None:
    """Weights, pages and tables to the byte; of what steps take no more than is planned."""
    info = load_engine(demo_model_path(), CONFIG, None).info
    notes = [note.removeprefix("verify-fit: ") for note in info.notes if note.startswith("verify-fit")]
    assert notes[0] == "3 sequences of 768 tokens in all, the longest 256"
    told = {name: rest for name, _, rest in (note.partition(": ") for note in notes[1:])}
    assert list(told) == ["weights", "sampler", "tables", "kv pages 0", "workspace", "all"]
    planned = dict(info.budget)
    for name in ("weights", "sampler", "tables", "kv pages 0"):
        assert told[name] == f"{planned[name]:,} of {planned[name]:,} bytes (100.0%)"


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_hybrid_fits_with_and_without_drafts(tmp_path: Path, drafts: int) -> None:
    path = make_tiny_checkpoint(tmp_path / "tiny", "qwen3_5", seed=1)
    built = build_engine(find_model(path, CONFIG), CONFIG, None, ScriptedDrafter({}, drafts, 100) if drafts else None)
    told = [note for note in built.info.notes if note.startswith("verify-fit")]
    planned = dict(built.info.budget)
    for name in ("kv pages 0", "state slots", *(("padding",) if drafts else ())):
        assert f"verify-fit: {name}: {planned[name]:,} of {planned[name]:,} bytes (100.0%)" in told


@pytest.mark.parametrize(("format", "kv_dtype"), [("bf16", "auto"), ("w4a16", "int8")])
def test_a_hybrid_of_some_size_fits(format: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large enough for the references' workspace to matter: chunks of the recurrence, weights decoded whole."""
    small = {
        "vocab_size": 4000, "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 128, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    }
    monkeypatch.setattr(shapes, "SHAPES", {"small": {**SHAPES["qwen3.8-27b"], **small}})
    config = replace(CONFIG, random_weights=f"small:{format}", max_seqs=8, chunk_tokens=128, kv_dtype=kv_dtype)
    told = build_engine(declared_model(f"small:{format}"), config, None).info.notes
    assert any(note.startswith("verify-fit: workspace: ") for note in told)


def test_more_than_the_plan_is_refused_by_the_lines_name(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Runner.held_bytes
    monkeypatch.setattr(Runner, "held_bytes", lambda self: held(self) | {"kv pages 0": 10**9})
    words = r"^verify-fit: [\d,]+ bytes were taken, .* most of it is kv pages 0: 1,000,000,000 of"
    with pytest.raises(ConfigError, match=words):
        load_engine(demo_model_path(), CONFIG, None)


def test_one_percent_more_is_borne() -> None:
    lines = (Taken("weights", 900, 900), Taken("sampler", 100, 109))
    check(lines)
    words = r"1,011 bytes were taken, 1\.1% more than the 1,000 planned; most of it is sampler: 111 of 100"
    with pytest.raises(ConfigError, match=words):
        check((lines[0], Taken("sampler", 100, 111)))


def test_lines_that_are_measured_together_are_planned_together() -> None:
    names = ("weights", "wide weights", "workspace", "logits workspace", "kv pages 0", "reserve")
    lines = tuple(BudgetLine(name, 1 << n, "why") for n, name in enumerate(names))
    found = compare(replace(budget(1, 1, 16), lines=lines), {"weights": 3, "workspace": 5, "kv pages 0": 16, "unplanned": 7})
    assert found == (Taken("weights", 3, 3), Taken("workspace", 12, 5), Taken("kv pages 0", 16, 16), Taken("unplanned", 0, 7))


@given(st.integers(1, 200), st.integers(1, 12), st.integers(2, 600))
def test_sequences_fill_the_pages(pages: int, seqs: int, context: int) -> None:
    pages = max(pages, seqs)
    context = min(context, pages * 16)
    lengths = full_lengths(budget(pages, seqs, context))
    taken = [-(-length // 16) for length in lengths]
    assert all(1 <= length <= context for length in lengths) and len(lengths) == seqs
    assert sum(taken) <= pages
    assert sum(taken) == min(pages, seqs * -(-context // 16)) and max(lengths) == lengths[0]


class Recorder:
    """A runner that only looks at what it is given."""

    def __init__(self) -> None:
        self.launched: list[StepPlan] = []
        self.assumed: list[StepPlan] = []

    def assume(self, plan: StepPlan) -> None:
        self.assumed.append(plan)

    def launch(self, plan: StepPlan) -> Any:
        self.launched.append(plan)
        return self

    def result(self) -> StepResult:
        return StepResult(0, ())


@given(st.integers(1, 60), st.integers(1, 6), st.integers(2, 300), st.integers(1, 80), st.sampled_from([0, 3]))
def test_steps_are_as_large_as_can_be(pages: int, seqs: int, context: int, chunk: int, drafts: int) -> None:
    pages = max(pages, seqs)
    context = min(context, pages * 16)
    case, runner = budget(pages, seqs, context, chunk, drafts), Recorder()
    run_largest_steps(runner, case, 50)  # type: ignore[arg-type]
    lengths, per_round = full_lengths(case), 3 + (drafts > 0)
    assert len(runner.launched) == len(runner.assumed) == 2 * per_round
    for begun, plan in zip(runner.assumed, runner.launched, strict=True):
        owned = [page for row in begun.rows for update in row.page_updates for page in update.pages]
        assert len(owned) == len(set(owned)) and set(owned) <= set(range(pages))
        assert [row.start for row in begun.rows] == [row.start for row in plan.rows]
        assert len(begun.admissions) == len(plan.rows) and not any(row.tokens or row.drafts for row in begun.rows)
        assert all(row.start + (len(row.tokens) or 1) <= length for row, length in zip(plan.rows, lengths, strict=False))
        assert sum(len(row.tokens) for row in plan.rows) <= chunk
    decoding, *verifying, chunked, short = runner.launched[:per_round]
    assert [row.start + 1 for row in decoding.rows] == lengths and not any(row.tokens for row in decoding.rows)
    assert all(row.drafts == (0,) * drafts for plan in verifying for row in plan.rows)
    assert len(chunked.rows[0].tokens) == max(1, min(lengths[0], chunk - min(seqs - 1, chunk // 2)))
    assert sum(len(row.tokens) for row in short.rows) == min(
        chunk, sum(min(length, max(2, chunk // seqs)) for length in lengths)
    )
    asked = runner.assumed[-1].admissions[0].request.params
    assert isinstance(asked, SamplingParams) and asked.prompt_logprobs and asked.logprobs and max(asked.logit_bias) < 50


class Held:
    """A runner whose tensors PyTorch counts as so many bytes."""

    def allocated_bytes(self) -> int:
        return 1000


@pytest.mark.parametrize(("others", "allocated", "kept"), [(0, 1070, 70), (500, 1570, 70), (570, 1570, 0)])
def test_kernels_keep_what_is_neither_the_engine_s_nor_others(
    others: int, allocated: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an earlier engine, and after one whose kernels keep the same."""
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocated)
    assert kernel_bytes(Held(), others) == kept  # type: ignore[arg-type]


@pytest.mark.parametrize("drafts", [0, 3])
def test_an_allocator_counts_little_beyond_the_tensors(tmp_path: Path, drafts: int) -> None:
    """Pieces, of which weights and cache are one each: what is behind the tensors of one is under a mebibyte."""
    path = make_tiny_checkpoint(tmp_path / "tiny", "qwen3_5", seed=1)
    config = replace(CONFIG, verify_fit=False)
    runner = build_engine(find_model(path, config), config, None, ScriptedDrafter({}, drafts, 100) if drafts else None).runner
    held = sum(runner.held_bytes().values())
    assert held <= runner.allocated_bytes() < held + 512 * sum(1 for _ in runner.parameters()) + 2**16
    taken = MemoryCounts(device=1 << 29, pool=1 << 24, tensors=1 << 19)
    before = runner.allocated_bytes()
    runner._taken = taken.and_also(taken)
    if runner._drafting is not None:
        runner._drafting.graphs = runner._drafting.forwards = SimpleNamespace(taken=taken)  # type: ignore[assignment]
    assert runner.allocated_bytes() == before + (1 << 20)
    assert runner.graph_bytes == {"graphs_pool": 1 << 25, "graphs_device": 1 << 30, "graphs_tensors": 1 << 20}
