"""Long runs in fp16 and fp32 state: a text followed through drafts, any number of them accepted, beside single tokens."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.long_runs import LongRun, long_run, pending_lost
from tests.support.tiny import make_tiny_checkpoint

from headrace.bench.teacher import Teacher
from headrace.config import EngineConfig
from headrace.engine.model_source import find_model

pytestmark = pytest.mark.usefixtures("one_thread")

STATES = ("fp16", "fp32")
LEAST_SHARE, MOST_ERROR = 1e-3, 0.05
GROWTH = 1.25
"""Of the mean error of the later half of lengths, a constant factor apart, over the earlier half's: if it grew with the root of
the length, that were 2 and more.
"""
GPU_SHAPE = {
    "vocab_size": 2000, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "max_position_embeddings": 32768,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", seed=3, config={"vocab_size": 300})


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(
        tmp_path_factory.mktemp("hybrid") / "model", seed=3, config=GPU_SHAPE, dtype=torch.bfloat16
    )


def check_states(run: LongRun) -> None:
    """Errors are those of roundings, do not grow with length, and are with drafts what they are without."""
    print(run.table())
    for errors in (run.plain_errors, run.drafted_errors):
        found = [error for _, error in sorted(errors.items())]
        half = len(found) // 2
        assert half >= 8 and 0 < max(found) < MOST_ERROR, run.table()
        assert np.mean(found[half:]) <= GROWTH * np.mean(found[:half]), run.table()
    plain, drafted = (float(np.mean(list(errors.values()))) for errors in (run.plain_errors, run.drafted_errors))
    assert drafted <= GROWTH * plain, run.table()


def geometric(first: int, last: int, count: int) -> list[int]:
    """`count` lengths between two, a constant factor apart."""
    return [round(first * (last / first) ** (n / (count - 1))) for n in range(count)]


@pytest.mark.parametrize("state", STATES)
def test_a_run_on_a_cpu(tiny: Path, state: str) -> None:
    lengths = [100, 700, 90]
    run = long_run(
        tiny, lengths, 1, geometric(50, 650, 20), vocab_size=300, device="cpu", dtype="float32", state_dtype=state,
        chunk_tokens=64,
    )
    assert run.share(range(3)) < LEAST_SHARE, run.share(range(3))
    assert len(run.pairs) > 60
    check_states(run)


def test_accepted_drafts_that_are_lost_are_noticed(tiny: Path) -> None:
    config = EngineConfig(device="cpu", dtype="float32", context=300, max_seqs=1, prefix_cache="off", loop="plain")
    teacher = Teacher(find_model(tiny, config), config)
    rng = random.Random(7)
    text = [rng.randrange(300) for _ in range(300)]
    runs = teacher.through_steps([text]), teacher.through_drafts([text], pending_lost(teacher))
    teacher.close()
    plain, lost = (run.logprobs[0].mean() for run in runs)
    assert math.isfinite(lost) and abs(lost / plain - 1) > 3 * LEAST_SHARE


def on_the_gpu(hybrid: Path, state: str, lengths: list[int]) -> LongRun:
    run = long_run(
        hybrid, lengths, 0, geometric(250, lengths[0] - 80, 32), vocab_size=2000, device="cuda", dtype="bfloat16",
        state_dtype=state, cache_bytes=1 << 30,
    )
    shares = run.share([0]), run.share(range(1, len(lengths)))
    print(f"{state}: {lengths[0]} tokens {shares[0]:.2e}, {len(lengths) - 1} x {lengths[1]} {shares[1]:.2e}")
    assert max(shares) < LEAST_SHARE
    check_states(run)
    return run


@pytest.mark.gpu
@pytest.mark.parametrize("state", STATES)
def test_two_thousand_tokens_on_a_gpu(hybrid: Path, state: str) -> None:
    on_the_gpu(hybrid, state, [2000, 400, 400, 400, 400, 400])


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", STATES)
def test_twenty_thousand_tokens_on_a_gpu(hybrid: Path, state: str) -> None:
    """As one sequence, and beside it in sequences of 4,096."""
    run = on_the_gpu(hybrid, state, [20_000, 4096, 4096, 4096, 4096, 4096])
    assert len(run.pairs) == 136, run.pairs  # each number of drafts, with each number of them accepted
