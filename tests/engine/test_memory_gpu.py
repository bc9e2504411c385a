"""What the budget promises and what an engine takes, on a GPU: four layers of the 27B shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.scripted_drafter import ScriptedDrafter

from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.plan import shapes
from headrace.plan.shapes import SHAPES, declared_model
from headrace.types import Request, SamplingParams

HUNGRY = (
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 100, "top_p": 0.9, "min_p": 0.01, "presence_penalty": 0.2, "frequency_penalty": 0.2, "repetition_penalty": 1.1},
    {"top_p": 0.9, "logit_bias": {5: 1.0, 7: -3.0}, "min_tokens": 4, "logprobs": 5},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 3},
)


def small(monkeypatch: pytest.MonkeyPatch, format: str, **sizes: Any) -> EngineConfig:
    shape = {"vocab_size": 50_000, "num_hidden_layers": 4}
    monkeypatch.setattr(shapes, "SHAPES", {"small": {**SHAPES["qwen3.8-27b"], **shape}})
    return EngineConfig(device="cuda", random_weights=f"small:{format}", **sizes)


@pytest.mark.gpu
@pytest.mark.alone
def test_nothing_more_is_taken_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 users, long prompts, every sampling option. What PyTorch holds, and the driver for the graphs, is what was planned."""
    sizes = {"cache_bytes": 6 * 10**9, "max_seqs": 64, "context": 16_384, "chunk_tokens": 2048}
    config = small(monkeypatch, "w4a16", **sizes)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    built = build_engine(declared_model("small:w4a16"), config, None)
    started = torch.cuda.memory_stats()["num_device_alloc"], torch.cuda.memory_reserved()
    for number in range(96):
        tokens = (300, 1500, 5000)[number % 3] + number
        params = SamplingParams(**HUNGRY[number % len(HUNGRY)])  # type: ignore[arg-type]
        built.core.add(Request(f"r{number}", tuple(i % 40_000 for i in range(tokens)), params, number, 24))
    while built.core.has_work:
        for event in built.core.step():
            assert event.finish_reason != "error", event.error
    torch.cuda.synchronize()
    assert (torch.cuda.memory_stats()["num_device_alloc"], torch.cuda.memory_reserved()) == started
    graphs = built.runner.graph_bytes
    taken = started[1] - before + graphs["graphs_device"] - graphs["graphs_pool"]
    planned = sum(count for _, count in built.info.budget)
    print(f"taken {taken:,} of {planned:,} planned: {taken / planned:.2%}")
    assert 0.98 < taken / planned < 1.01
    built.core.close()


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_gpu_is_filled_as_planned(drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"cache_bytes": 2 * 10**9, "max_seqs": 16, "context": 4096, "chunk_tokens": 512, "verify_fit": True}
    config = small(monkeypatch, "w4a16", **sizes)
    drafter = ScriptedDrafter({}, drafts, 50_000) if drafts else None
    built = build_engine(declared_model("small:w4a16"), config, None, drafter)
    told = [note for note in built.info.notes if note.startswith("verify-fit")]
    print("\n".join(told))
    assert any(note.startswith("verify-fit: workspace: ") for note in told)
    built.core.close()


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("format", ["bf16", "w4a16"])
def test_parts_take_what_is_planned_for_them(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(monkeypatch, format, cache_bytes=2 * 10**9, max_seqs=16, context=4096, chunk_tokens=512)
    built = build_engine(declared_model(f"small:{format}"), config, None)
    memory = {part: taken / planned for part, (planned, taken) in built.memory.items()}
    print(f"taken of planned: { {part: f'{share:.1%}' for part, share in memory.items()} }")
    assert memory.keys() == {"weights", "workspace", "cache", "graphs", "kernel buffers"}
    assert 0.998 < memory["weights"] < 1.002 and 0.99 < memory["cache"] < 1.01 and 0.99 < memory["kernel buffers"] < 1.01
    assert memory["workspace"] < 1 and memory["graphs"] < 1.1

    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    for number in range(12):  # top-p alone is ranked by PyTorch, log-probabilities too
        params = SamplingParams(top_p=0.9, top_k=(0, 20, 100)[number % 3], prompt_logprobs=1, logprobs=3)
        built.core.add(Request(f"r{number}", tuple(range(700 + number)), params, number, 8))
    while built.core.has_work:
        for event in built.core.step():
            assert event.finish_reason != "error", event.error
    most = torch.cuda.max_memory_allocated() - held
    planned, _ = built.memory["workspace"]
    assert most < planned, f"{most:,} of {planned:,}"
    built.core.close()
