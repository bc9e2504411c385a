"""What the budget promises and what an engine takes, on a GPU: four layers of the 27B shape, a process for each test.

With -v -s they tell what they do, and how long it took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support.gpu_memory import Held, ProcessMemory

from headrace.bench.step_engine import FixedDrafts
from headrace.config import EngineConfig
from headrace.engine.build import BuiltEngine, build_engine
from headrace.plan import shapes
from headrace.plan.shapes import SHAPES, declared_model
from headrace.scheduler.drafter import Drafter
from headrace.types import Request, SamplingParams

HUNGRY = (
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 100, "top_p": 0.9, "min_p": 0.01, "presence_penalty": 0.2, "frequency_penalty": 0.2, "repetition_penalty": 1.1},
    {"top_p": 0.9, "logit_bias": {5: 1.0, 7: -3.0}, "min_tokens": 4, "logprobs": 5},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 3},
)
VOCAB, STATE_BYTES = 50_000, 3 * (48 * 128 * 128 + 3 * 10_240) * 2
ANSWER_TOKENS = 24


class Progress:
    """Lines with the seconds since the one before."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        print(flush=True)

    def __call__(self, done: str) -> None:
        now = time.perf_counter()
        print(f"  {now - self._since:5.1f} s  {done}", flush=True)
        self._since = now


def build(monkeypatch: pytest.MonkeyPatch, format: str, drafter: Drafter | None = None, **sizes: Any) -> BuiltEngine:
    shape = {"vocab_size": VOCAB, "num_hidden_layers": 4}
    monkeypatch.setattr(shapes, "SHAPES", {"small": {**SHAPES["qwen3.8-27b"], **shape}})
    config = EngineConfig(device="cuda", random_weights=f"small:{format}", **sizes)
    return build_engine(declared_model(f"small:{format}"), config, None, drafter)


def prompt(name: int, tokens: int) -> tuple[int, ...]:
    """Unlike every other one from the first token on."""
    return tuple((name * 7919 + 1 + i * (1 + name % 5)) % VOCAB for i in range(tokens))


def answer(built: BuiltEngine, kind: str, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """All of them at once, every way to ask in turn. The prompts with their answers."""
    found = {f"{kind} {number}": tokens for number, tokens in enumerate(prompts)}
    for number, (name, tokens) in enumerate(found.items()):
        params = SamplingParams(**HUNGRY[number % len(HUNGRY)])  # type: ignore[arg-type]
        built.core.add(Request(name, tokens, params, number, ANSWER_TOKENS, message_ends=(len(tokens) // 2,)))
    while built.core.has_work:
        for event in built.core.step():
            assert event.finish_reason != "error", event.error
            found[event.request] += event.tokens
    return list(found.values())


def tell_late(caplog: pytest.LogCaptureFixture) -> None:
    """Kernels that the start should have compiled; none where a cache on disk has them."""
    late = [record.getMessage() for record in caplog.records if record.name == "headrace.kernels.late"]
    print("\n    ".join((f"  {len(late)} kernels compiled while serving", *late)), flush=True)


def start_note(built: BuiltEngine) -> str:
    return next(note for note in built.info.notes if note.startswith("start: "))


@pytest.mark.gpu
@pytest.mark.alone
def test_nothing_more_is_taken_after_the_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """64 users, long prompts beside those that decode, every sampling option, prefixes found on the device and in host memory.

    PyTorch asks the device for nothing more, and what the driver counts for the process is what was planned.
    """
    process, done = ProcessMemory(), Progress()
    torch.zeros(1, device="cuda")
    context_bytes = process.bytes()
    done(f"a context: {context_bytes:,} bytes {process.source}")
    built = build(
        monkeypatch, "w4a16", cache_bytes=16 * 10**9, max_seqs=64, context=65_536, chunk_tokens=2048,
        gpu_checkpoint_bytes=12 * STATE_BYTES, ram_cache_bytes=2 * 10**9,
    )
    done(start_note(built))
    check_parts(built)
    started, planned = Held.now(), sum(count for _, count in built.info.budget)
    process_bytes = process.bytes()
    users = [prompt(n, (300, 1500, 5000)[n % 3] + n) for n in range(64)]
    mixed = [*(prompt(100 + n, 200) for n in range(8)), prompt(200, 60_000), prompt(201, 20_001)]
    for kind, prompts in (("64 users", users), ("long prompts beside short ones", mixed)):
        for turn in (1, 2):
            prompts = [(*tokens, *range(50)) for tokens in answer(built, f"{kind}, turn {turn}", prompts)]
            more = process.bytes() - process_bytes
            done(f"{kind}, turn {turn}: {more:+,} bytes {process.source}")
            assert Held.now() == started
            assert abs(more) < 0.01 * planned
    stats = built.core.stats()
    print(f"  {stats.prefix_hits_total} prefixes found, {stats.restores_total} of them in host memory")
    assert stats.prefix_hits_total > stats.restores_total > 0
    tell_late(caplog)
    taken, others = process.bytes(), process.bytes() - context_bytes - torch.cuda.memory_reserved()
    print(f"  taken {taken:,} of {planned:,} planned: {taken / planned:.2%}; beside the context and PyTorch's {others:,}")
    assert abs(taken / planned - 1) < 0.01
    built.core.close()


def check_parts(built: BuiltEngine) -> None:
    """What was taken of what was planned for each part."""
    shares = {part: taken / planned for part, (planned, taken) in built.memory.items()}
    print(f"  taken of planned: { {part: f'{share:.1%}' for part, share in shares.items()} }")
    assert shares.keys() == {"weights", "workspace", "cache", "graphs", "kernel buffers"}
    assert 0.998 < shares["weights"] < 1.002 and 0.99 < shares["cache"] < 1.01 and 0.99 < shares["kernel buffers"] < 1.01
    assert shares["workspace"] < 1 and shares["graphs"] < 1.1


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("format", "drafts"), [("w4a16", 3), ("bf16", 0)])
def test_a_gpu_is_filled_as_planned(
    format: str, drafts: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """--verify-fit, and requests afterwards: they take no more than steps are planned to."""
    done, drafter = Progress(), FixedDrafts(drafts) if drafts else None
    built = build(
        monkeypatch, format, drafter, cache_bytes=2 * 10**9, max_seqs=16, context=4096, chunk_tokens=512, verify_fit=True
    )
    done(start_note(built))
    check_parts(built)
    told = [note for note in built.info.notes if note.startswith("verify-fit")]
    print("  " + "\n  ".join(told))
    assert any(note.startswith("verify-fit: workspace: ") for note in told)
    started, held_bytes = Held.now(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    answer(built, "r", [prompt(n, 700 + 130 * n) for n in range(24)])
    most, (planned, _) = torch.cuda.max_memory_allocated() - held_bytes, built.memory["workspace"]
    done(f"24 requests: {most:,} bytes of {planned:,} planned for a step")
    tell_late(caplog)
    assert most < planned
    assert Held.now() == started
    built.core.close()
