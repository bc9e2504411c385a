"""Prompts and parameters to requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.engine.requests import build_requests
from headrace.errors import RequestError
from headrace.types import EngineInfo, Request, SamplingParams

INFO = EngineInfo("m", "cpu", "float32", context=16, max_seqs=4, chunk_tokens=8, page_tokens=4, kv_pages=16, vocab_size=100)


def _build(prompt: Any = (1, 2, 3), *, eos_ids: tuple[int, ...] = (9,), **params: Any) -> tuple[Request, ...]:
    return build_requests("req", prompt, SamplingParams(**params), INFO, eos_ids, 1.5)


def test_one_request() -> None:
    (request,) = _build([1, 2, 3], seed=7, max_tokens=5)
    assert request == Request("req-0", (1, 2, 3), SamplingParams(seed=7, max_tokens=5), 7, 5, (9,), 1.5)


def test_choices_have_seeds_of_their_own() -> None:
    first, second, third = _build(seed=7, n=3)
    assert [first.id, second.id, third.id] == ["req-0", "req-1", "req-2"]
    assert first.seed == 7 and len({first.seed, second.seed, third.seed}) == 3
    assert [request.seed for request in _build(seed=7, n=3)] == [first.seed, second.seed, third.seed]
    assert all(-(2**63) <= request.seed < 2**63 for request in _build(seed=-(2**63), n=64))


def test_without_a_seed_one_is_drawn() -> None:
    seeds = {_build()[0].seed for _ in range(20)}
    assert len(seeds) == 20 and all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(("asked", "given"), [(None, 13), (5, 5), (13, 13), (14, 13), (10**9, 13), (0, 0)])
def test_max_tokens_is_clamped_to_the_context(asked: int | None, given: int) -> None:
    assert _build(max_tokens=asked)[0].max_tokens == given


def test_end_tokens() -> None:
    assert _build(eos_ids=(9, 100, 250))[0].eos_ids == (9,)
    assert _build(ignore_eos=True)[0].eos_ids == ()


def test_messages_end_behind_their_end_tokens() -> None:
    assert _build([9, 1, 9, 7, 2], eos_ids=(9, 7))[0].message_ends == (1, 3, 4)
    assert _build([9, 1], ignore_eos=True)[0].message_ends == (1,), "the answer goes on, the prompt has messages all the same"


def test_cached_prefixes_are_shared_within_a_tenant_and_a_salt() -> None:
    def salt(tenant: str, given: str) -> str:
        return build_requests("r", [1], SamplingParams(cache_salt=given), INFO, (9,), 0.0, tenant)[0].salt

    assert (salt("", ""), salt("", "mine")) == ("", "mine")
    assert len({salt(tenant, given) for tenant in ("", "a", "b") for given in ("", "mine")}) == 6


@pytest.mark.parametrize("length", [16, 17, 400])
def test_a_prompt_that_fills_the_context(length: int) -> None:
    with pytest.raises(RequestError) as caught:
        _build([1] * length)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    assert str(length) in str(caught.value) and "16" in str(caught.value)
    assert _build([1] * 15)[0].max_tokens == 1


@pytest.mark.parametrize(
    ("build", "param"),
    [
        (lambda: _build([]), "prompt"),
        (lambda: _build([0, 999999999]), "prompt"),
        (lambda: _build([-1]), "prompt"),
        (lambda: _build([100]), "prompt"),
        (lambda: _build(["a"]), "prompt"),
        (lambda: _build([True]), "prompt"),
        (lambda: _build([1.0]), "prompt"),
        (lambda: _build(logit_bias={99999999: 5.0}), "logit_bias"),
        (lambda: _build(stop_token_ids=(5, 100)), "stop_token_ids"),
        (lambda: _build(stop_token_ids=(5,) * 1025), "stop_token_ids"),
        (lambda: _build(stop="x" * 1025), "stop"),
        (lambda: _build(cache_salt="x" * 1025), "cache_salt"),
        (lambda: _build(cache_salt=None), "cache_salt"),
        (lambda: _build(temperature="hot"), "temperature"),
        (lambda: _build(top_p=True), "top_p"),
        (lambda: _build(max_tokens=1.5), "max_tokens"),
        (lambda: _build(n=None), "n"),
        (lambda: _build(seed="7"), "seed"),
    ],
)
def test_what_can_never_work_is_named(build: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        build()
    assert caught.value.param == param


def test_the_last_id_of_the_vocabulary_is_good() -> None:
    params = SamplingParams(logit_bias={99: 1.0}, stop_token_ids=(99,))
    (request,) = build_requests("r", [99], params, replace(INFO, context=2), (99,), 0.0)
    assert request.max_tokens == 1
