"""What the shipped weights make of held-out texts: more nats a token than when they were trained is a regression."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from headrace import LLM, SamplingParams
from headrace.bench.held_out import Text

TOKENS, COUNT = 256, 6
MOST: Mapping[str, float] = {"prose": 3.877, "code": 2.748, "chat": 1.619, "copy": 3.075}
"""Nats of a token: 1 % above what was measured, in float32 on a CPU."""


@pytest.fixture(scope="module")
def llm(lab_model: Path) -> LLM:
    return LLM(lab_model, device="cpu", dtype="float32", context=TOKENS + 2, max_seqs=4, prefix_cache="off", speculate="off")


@pytest.mark.parametrize("kind", MOST)
def test_held_out_texts_are_as_likely_as_ever(kind: str, llm: LLM, texts: list[Text]) -> None:
    tokens = [token for text in texts if text.kind == kind for token in llm.tokenizer.encode(text.text)]
    sequences = [tokens[at : at + TOKENS] for at in range(0, len(tokens) - TOKENS + 1, TOKENS)][:COUNT]
    done = llm.generate(sequences, SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True))
    nats = [-entry.logprob for each in done for entry in each.prompt_logprobs or () if entry is not None]
    print(f"{kind}: {np.mean(nats):.4f} nats a token of {len(nats)}")
    assert len(sequences) >= 4 and np.mean(nats) < MOST[kind]
