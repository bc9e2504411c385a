"""The engine against itself and against transformers: company, chunks, pages and preemption change no token."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.oracle import transformers
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM, Completion, SamplingParams
from headrace.runner.runner import Runner
from headrace.runner.scores import PromptScores

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = 12
CONTEXT = 200


@pytest.fixture(scope="module", params=["qwen3_5_text", "qwen3", "llama"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp(request.param) / "model", request.param, seed=3)


def make_requests(vocab_size: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of 1 to 120 tokens; greedy, sampled, penalised and scored requests."""
    rng = random.Random(5)
    prompts = [[rng.randrange(3, vocab_size) for _ in range(rng.choice((1, 2, 17, 40, 120)))] for _ in range(PROMPTS)]
    params = [
        SamplingParams(
            temperature=(0.0, 0.9, 1.2)[i % 3],
            seed=i,
            top_p=(1.0, 0.9)[i % 2],
            repetition_penalty=(1.0, 1.3)[i % 2],
            frequency_penalty=(0.0, 0.4)[i // 2 % 2],
            logprobs=2,
            prompt_logprobs=(None, 1)[i % 2],
            max_tokens=rng.choice((1, 20, 60)),
            ignore_eos=True,
        )
        for i in range(PROMPTS)
    ]
    return prompts, params


def check_equal(found: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.tokens, one.text, one.finish_reason) == (other.tokens, other.text, other.finish_reason)
        for mine, theirs in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
            assert (mine is None) == (theirs is None)
            for a, b in zip(mine or (), theirs or (), strict=True):
                assert (a is None) == (b is None)
                if a is not None and b is not None:
                    assert a.token == b.token and a.logprob == pytest.approx(b.logprob, abs=1e-9)
                    assert [t for t, _ in a.top] == [t for t, _ in b.top]


def test_company_chunks_pages_and_preemption_change_no_token(checkpoint: Path) -> None:
    with LLM(checkpoint, device="cpu", dtype="float64", context=CONTEXT, max_seqs=1, chunk_tokens=512) as alone:
        prompts, params = make_requests(alone.info.vocab_size)
        expected = [alone.generate([prompt], each)[0] for prompt, each in zip(prompts, params, strict=True)]
    for chunk_tokens, page_tokens in ((1, 1), (3, 16), (7, 5), (64, 16), (512, 64)):
        settings = {"context": CONTEXT, "max_seqs": 8, "chunk_tokens": chunk_tokens, "page_tokens": page_tokens}
        with LLM(checkpoint, device="cpu", dtype="float64", **settings) as llm:
            check_equal(llm.generate(prompts, params), expected)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_keys_and_values_of_8_bits(checkpoint: Path, kv_dtype: str) -> None:
    """Chunks and company change nothing, and what 8 bits change is little."""
    settings = {"device": "cpu", "dtype": "float64", "context": CONTEXT}
    with LLM(checkpoint, **settings, max_seqs=1, chunk_tokens=512, kv_dtype=kv_dtype) as alone:
        prompts, params = make_requests(alone.info.vocab_size)
        prompts, params = prompts[:6], params[:6]
        expected = [alone.generate([prompt], each)[0] for prompt, each in zip(prompts, params, strict=True)]
    with LLM(checkpoint, **settings, max_seqs=8, chunk_tokens=7, page_tokens=4, kv_dtype=kv_dtype) as llm:
        check_equal(llm.generate(prompts, params), expected)
    scoring = SamplingParams(prompt_logprobs=0, max_tokens=1)
    scored = []
    for kv in (kv_dtype, "auto"):
        with LLM(checkpoint, **settings, max_seqs=8, kv_dtype=kv) as llm:
            completions = llm.generate(prompts, scoring)
        scored.append([token.logprob for one in completions for token in one.prompt_logprobs or () if token is not None])
    differences = [abs(a - b) for a, b in zip(*scored, strict=True)]
    assert 0 < max(differences) < 0.5


def test_preempted_and_resumed(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages for little more than one sequence: the others are thrown out and computed again, again and again; the
    log-probabilities of their prompts, which have been sent, are not.
    """
    scored: list[int] = []
    score = Runner._score

    def counted(runner: Runner, hidden: torch.Tensor, followers: tuple[int, ...], alternatives: int) -> PromptScores:
        scored.append(len(followers))
        return score(runner, hidden, followers, alternatives)

    monkeypatch.setattr(Runner, "_score", counted)
    settings = {"device": "cpu", "dtype": "float64", "max_seqs": 6, "chunk_tokens": 48, "page_tokens": 4}
    with LLM(checkpoint, **settings, context=CONTEXT) as roomy:
        prompts, params = make_requests(roomy.info.vocab_size)
        prompts, params = [p[:20] for p in prompts], [replace(p, max_tokens=60) for p in params]  # they grow after admission
        expected = roomy.generate(prompts, params)
        budget = dict(roomy.info.budget)
        page_bytes = budget["kv pages 0"] // roomy.info.kv_pages
    cache_bytes = budget.get("state slots", 0) + page_bytes * (CONTEXT // 4 + 2)
    with LLM(checkpoint, **settings, context=CONTEXT, cache_bytes=cache_bytes) as tight:
        once = sum(scored)
        check_equal(tight.generate(prompts, params), expected)
        assert tight._core.stats().preemptions_total >= 5
        assert sum(scored) == 2 * once > 0


def test_greedy_tokens_are_those_of_transformers(checkpoint: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with LLM(checkpoint, device="cpu", dtype="float32", context=CONTEXT, max_seqs=5, chunk_tokens=32) as llm:
        prompts, _ = make_requests(llm.info.vocab_size)
        found = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=30))
    for prompt, completion in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False)
        assert list(completion.tokens) == out[0, len(prompt) :].tolist()
