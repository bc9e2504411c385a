"""Sequences that follow given texts: the model's log-probabilities are the same through prompts, steps and drafts, exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.support.tiny import make_tiny_checkpoint

from headrace.bench.teacher import Teacher
from headrace.config import EngineConfig
from headrace.engine.model_source import find_model
from headrace.types import Request, SamplingParams

VOCAB, LENGTHS = 300, (3, 90, 160, 77)


@pytest.fixture(scope="module", params=["plain", "overlapped"])
def teacher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teacher]:
    checkpoint = make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "m", seed=8, config={"vocab_size": VOCAB})
    config = EngineConfig(
        device="cpu", dtype="float64", context=max(LENGTHS), max_seqs=3, chunk_tokens=32, page_tokens=8, prefix_cache="off",
        loop=request.param,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = Teacher(find_model(checkpoint, config), config)
    yield found
    found.close()
    torch.set_num_threads(threads)


def texts() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]


def test_the_way_through_a_text_changes_no_log_probability(teacher: Teacher) -> None:
    said = teacher.through_steps(texts())
    assert [len(each) for each in said.logprobs] == [length - 1 for length in LENGTHS]
    assert np.std(np.concatenate(said.logprobs)) > 1 and not said.pairs
    drafted = teacher.through_drafts(texts(), seed=3)
    assert {drafts for drafts, _ in drafted.pairs} == set(range(16))
    assert sum(right for _, right in drafted.pairs.elements()) > 100
    for other in (drafted, teacher.through_prompts(texts())):
        for found, expected in zip(other.logprobs, said.logprobs, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_drafts_are_accepted_as_they_were_meant_to_be(teacher: Teacher) -> None:
    steps = 0

    def watch(lengths: object, accepted: object) -> None:
        nonlocal steps
        steps += 1

    (text,) = texts()[2:3]
    pairs = teacher.through_drafts([text], watch).pairs
    assert sum(1 + right for _, right in pairs.elements()) in (len(text) - 2, len(text) - 1)
    assert abs(steps - sum(pairs.values())) <= 3 < len(text) / 2


def test_what_the_model_writes_by_itself_begins_with_the_prompts(teacher: Teacher) -> None:
    prompts = [text[:20] for text in texts()[1:]]
    written, yielded = teacher.go_on(prompts, 60, 0)
    assert [text[:20] for text in written] == [tuple(prompt) for prompt in prompts]
    assert {len(text) for text in written} == {60} and yielded == 1


def test_a_request_that_graphs_would_draw_for_is_refused(teacher: Teacher) -> None:
    teacher.runner.follow({"r": [1, 2, 3]})
    with pytest.raises(ValueError, match="request 'r' follows a text, so it must ask for log-probabilities"):
        teacher.runner._sampler.script.begin(0, Request("r", (1,), SamplingParams(), 0, 2))  # type: ignore[union-attr]
    teacher.runner.follow({})
