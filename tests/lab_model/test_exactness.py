"""Drafts that are often right change no token: every drafter beside none, on real chats, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.bench.held_out import Text, prompts

CHATS, TOKENS = 6, 40
DRAFTERS: tuple[dict[str, Any], ...] = (
    {"speculate": "lookup", "draft_tokens": 7}, {"speculate": "mtp", "draft_tokens": 4}, {"speculate": "dflash"},
    {"speculate": "mtp", "draft_tokens": 2, "verify_tokens": 7},
)
Tokens = list[tuple[int, ...]]


def answers(lab_model: Path, texts: list[Text], params: SamplingParams, **settings: Any) -> tuple[Tokens, int, int]:
    """With the drafts that were made, and that were accepted."""
    own = {"context": 512, "max_seqs": CHATS, "prefix_cache": "off"} | settings
    with LLM(lab_model, device="cpu", dtype="float64", **own) as llm:
        both = [text for text in texts if text.kind in ("chat", "copy")]
        chosen = [list(prompt.tokens) for prompt in prompts(both, llm.tokenizer, CHATS // 2, 400)]
        done = llm.generate(chosen, params)
    return [each.tokens for each in done], sum(d.drafted_tokens for d in done), sum(d.accepted_tokens for d in done)


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "drawn with seeds"])
def params(request: pytest.FixtureRequest) -> SamplingParams:
    return SamplingParams(temperature=request.param, seed=5, max_tokens=TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(lab_model: Path, texts: list[Text], params: SamplingParams) -> Tokens:
    tokens, drafted, _ = answers(lab_model, texts, params, speculate="off")
    assert not drafted and len(set(tokens)) > CHATS // 2
    return tokens


@pytest.mark.parametrize("settings", DRAFTERS, ids=lambda settings: " ".join(map(str, settings.values())))
def test_tokens_are_those_without_drafts(
    settings: dict[str, Any], lab_model: Path, texts: list[Text], params: SamplingParams, plain: Tokens
) -> None:
    found, drafted, accepted = answers(lab_model, texts, params, **settings)
    assert found == plain
    assert accepted > drafted / 20 > 0
