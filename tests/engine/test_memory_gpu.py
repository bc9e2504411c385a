"""What the budget promises and what an engine takes, on a GPU: four layers of the 27B shape."""

from __future__ import annotations

import pytest
import torch

from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.plan import shapes
from headrace.plan.shapes import SHAPES, declared_model
from headrace.types import Request, SamplingParams


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("format", ["bf16", "w4a16"])
def test_parts_take_what_is_planned_for_them(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"vocab_size": 50_000, "num_hidden_layers": 4}
    monkeypatch.setattr(shapes, "SHAPES", {"small": {**SHAPES["qwen3.8-27b"], **small}})
    name = f"small:{format}"
    sizes = {"cache_bytes": 2 * 10**9, "max_seqs": 16, "context": 4096, "chunk_tokens": 512}
    config = EngineConfig(device="cuda", random_weights=name, **sizes)
    built = build_engine(declared_model(name), config, None)
    memory = {part: taken / planned for part, (planned, taken) in built.memory.items()}
    print(f"taken of planned: { {part: f'{share:.1%}' for part, share in memory.items()} }")
    assert memory.keys() == {"weights", "workspace", "cache", "graphs"}
    assert 0.998 < memory["weights"] < 1.002 and 0.99 < memory["cache"] < 1.01
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
