"""Building a real engine: what it says of itself, what it refuses, and that a process of its own gives the same tokens."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM, SamplingParams
from headrace.config import EngineConfig
from headrace.engine import build
from headrace.engine.core import EngineCore
from headrace.engine.model_source import find_model
from headrace.engine.process import EngineProcess
from headrace.engine.requests import build_requests
from headrace.errors import CheckpointError, ConfigError
from headrace.hardware import detect
from headrace.plan.budget import make_budget
from headrace.plan.dtypes import resolve_dtypes
from headrace.plan.prefix_cache import prefix_settings
from headrace.scheduler.scheduler import Scheduler

CONFIG = EngineConfig(device="cpu", dtype="float64", context=256, max_seqs=3, chunk_tokens=32, page_tokens=8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "Tiny-Hybrid", "qwen3_5", seed=1, mtp=True)


def test_an_engine_says_what_it_is(checkpoint: Path):
    progress: list[tuple[int, int]] = []
    info = build.load_engine(checkpoint, CONFIG, lambda done, total: progress.append((done, total))).info
    assert Path(info.model) == checkpoint
    assert (info.device, info.dtype, info.context, info.max_seqs) == ("cpu", "float64", 256, 3)
    assert (info.chunk_tokens, info.page_tokens, info.kv_pages) == (32, 8, 3 * 256 // 8)
    assert any("vision" in note and "left out" in note for note in info.notes)
    assert any("tensors of the multi-token head, which --speculate mtp" in note for note in info.notes)
    assert {name for name, _ in info.budget} >= {"weights", "state slots"}
    done, total = zip(*progress, strict=True)
    assert list(done) == sorted(done) and done[-1] == total[-1] > 0 and len(set(total)) == 1


async def test_a_process_of_its_own_gives_the_same_tokens(checkpoint: Path):
    params = SamplingParams(n=2, seed=7, max_tokens=20, ignore_eos=True)
    prompt = "the hello world in and"
    with LLM(checkpoint, device="cpu", dtype="float64", context=256, max_seqs=3, chunk_tokens=32, page_tokens=8) as llm:
        expected = [c.tokens for c in llm.generate(prompt, params)]
        ids, eos_ids = llm.tokenizer.encode(prompt), llm.tokenizer.eos_ids
    engine = await EngineProcess.start(str(checkpoint), CONFIG, max_queue=4)
    try:
        streams = [engine.submit(request) for request in build_requests("r", ids, params, engine.info, eos_ids, 0.0)]
        assert [tuple([t async for event in stream for t in event.tokens]) for stream in streams] == expected
    finally:
        await engine.close()


@pytest.mark.parametrize("context", [2, 3, 4, 40, 256])
def test_first_requests_fit_and_leave_nothing(checkpoint: Path, context: int):
    config = replace(CONFIG, context=context)
    built = build.load_engine(checkpoint, config, None)
    model = find_model(checkpoint, config)
    hardware = detect("cpu")
    budget = make_budget(model.spec, model.weight_map, hardware, config, resolve_dtypes(config, hardware, "bfloat16"))
    dtypes = resolve_dtypes(config, hardware, "bfloat16")
    prefixes, _ = prefix_settings(model.spec, budget.layout, config, dtypes, budget.chunk_tokens)
    scheduler = Scheduler(budget.layout, chunk_tokens=budget.chunk_tokens, prefixes=prefixes)
    build._serve_first(EngineCore(scheduler, built.runner), budget)
    stats = scheduler.stats()
    assert (stats.kv_pages_used, stats.slots_used, stats.generation_tokens_total) == (0, 0, 2 * min(3, context - 1))
    assert stats.prefix_hits_total == (context > 4), "and they go through the prefix cache"


@pytest.mark.parametrize(
    "error", [MemoryError("12 GB"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 12 GB\nmore"),
              OSError(12, "Cannot allocate memory: 12 GB")],
)
def test_running_out_of_memory_is_a_matter_of_settings(checkpoint: Path, error: Exception, monkeypatch: pytest.MonkeyPatch):
    def load_weights(*_: object) -> None:
        raise error

    monkeypatch.setattr("headrace.loader.load_weights", load_weights)
    with pytest.raises(ConfigError, match=r"^out of memory, although the budget is [\d,]+ bytes \(.*\): .*12 GB$"):
        build.load_engine(checkpoint, CONFIG, None)


@pytest.mark.parametrize("given", [10**15, 10**30])
def test_host_memory_that_is_not_there_is_refused_before_anything_is_loaded(
    checkpoint: Path, given: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(build, "_build_core", None)
    with pytest.raises(ConfigError, match=f"ram_cache_bytes: {given:,} bytes .* are more than"):
        build.load_engine(checkpoint, replace(CONFIG, ram_cache_bytes=given), None)


def test_other_failures_stay_what_they_are(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.loader.load_weights", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build.load_engine(checkpoint, CONFIG, None)


async def test_a_process_reports_a_bad_checkpoint_as_what_it_is(tmp_path: Path):
    with pytest.raises(CheckpointError, match="does not exist"):
        await EngineProcess.start(str(tmp_path / "none"), CONFIG, max_queue=1)


def test_a_bad_checkpoint_is_found_before_torch_is_imported(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from headrace.engine.build import load_engine, EngineConfig\n"
        "try: load_engine(Path(sys.argv[1]), EngineConfig(), None)\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["CheckpointError", "False"]
