"""`LLM` on tiny random models: the whole engine in this process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.oracle import transformers
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM, Completion, SamplingParams
from headrace.errors import CheckpointError, ConfigError, EngineUnavailableError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["the hello world", "and in the other", "st", "world " * 20]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3_5_text", seed=3)


def load(checkpoint: Path) -> LLM:
    return LLM(checkpoint, device="cpu", dtype="float64", context=512, max_seqs=4, chunk_tokens=16)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with load(checkpoint) as engine:
        yield engine


def made(found: list[Completion]) -> list[Completion]:
    """All but how much of the prompts came from the cache, which is what requests before left there."""
    return [replace(each, cached_tokens=0) for each in found]


def idle(llm: LLM) -> bool:
    stats = llm._core.stats()
    return stats.requests_running == stats.requests_waiting == stats.kv_pages_used == stats.slots_used == 0


def test_importing_headrace_imports_no_torch():
    code = "import sys, headrace; headrace.SamplingParams(); print('torch' in sys.modules, *sorted(headrace.__all__))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "Completion", "LLM", "SamplingParams"]


# Tokens


def test_greedy_tokens_are_those_of_transformers(llm: LLM, checkpoint: Path):
    oracle = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    oracle.generation_config.eos_token_id = None  # a least number of tokens would keep it from drawing one at all
    for prompt, completion in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
        ids = torch.tensor([llm.tokenizer.encode(prompt)])
        mask = torch.ones_like(ids)
        expected = oracle.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=12)
        assert completion.tokens == tuple(expected[0, ids.shape[1] :].tolist())
        assert completion.text == llm.tokenizer.decode(completion.tokens)
        assert (completion.finish_reason, completion.prompt_tokens) == ("length", ids.shape[1])


def test_completions_come_in_the_order_of_prompts_and_choices(llm: LLM):
    params = [SamplingParams(n=n, seed=n, max_tokens=3 + n, ignore_eos=True) for n in (2, 1, 3, 7)]
    together = llm.generate(PROMPTS, params)
    assert [c.index for c in together] == [0, 1, 0, 0, 1, 2, *range(7)]
    alone = [c for prompt, each in zip(PROMPTS, params, strict=True) for c in llm.generate(prompt, each)]
    assert [replace(c, cached_tokens=0) for c in together] == [replace(c, cached_tokens=0) for c in alone]
    assert len({c.tokens for c in together[-7:]}) == 7


def test_prompts_may_be_token_ids_one_or_many(llm: LLM):
    ids = [llm.tokenizer.encode(p) for p in PROMPTS]
    expected = made(llm.generate(PROMPTS, GREEDY))
    assert made(llm.generate(ids, GREEDY)) == expected
    assert made(llm.generate([ids[0], PROMPTS[1]], GREEDY)) == expected[:2]
    for one in (ids[0], tuple(ids[0]), PROMPTS[0]):
        assert made(llm.generate(one, GREEDY)) == expected[:1]
    assert llm.generate([], GREEDY) == []


def test_a_seed_decides_the_tokens_and_none_draws_one(llm: LLM):
    def tokens(seed: int | None) -> tuple[int, ...]:
        return llm.generate(PROMPTS[0], SamplingParams(seed=seed, max_tokens=30, ignore_eos=True))[0].tokens

    assert tokens(5) == tokens(5) != tokens(6)
    assert tokens(None) != tokens(None)


def test_without_parameters_it_samples_to_the_end_of_the_message_or_of_the_context(llm: LLM):
    (completion,) = llm.generate("world")
    assert completion.finish_reason in ("stop", "length")
    if completion.finish_reason == "length":
        assert completion.prompt_tokens + len(completion.tokens) == llm.info.context


# Ends


def test_a_stop_string_ends_the_text_and_frees_the_request(llm: LLM):
    whole = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))[0]
    stop = whole.text[10:13]
    cut = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, stop=stop, logprobs=0))[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.tokens == whole.tokens[: len(cut.tokens)] and len(cut.tokens) < 60
    assert cut.logprobs is not None and [p.token for p in cut.logprobs] == list(cut.tokens)
    assert idle(llm)


def test_a_stop_token_ends_the_message_and_is_no_text(llm: LLM):
    whole = llm.generate(PROMPTS[1], GREEDY)[0]
    stop = whole.tokens[5]
    first = whole.tokens.index(stop)
    cut = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=(stop,)))[0]
    assert cut.tokens == whole.tokens[: first + 1]
    assert cut.text == llm.tokenizer.decode(whole.tokens[:first])
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_log_probabilities_are_given_if_asked_for(llm: LLM):
    ids = llm.tokenizer.encode(PROMPTS[3])
    plain, scored = (
        llm.generate(PROMPTS[3], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=n, prompt_logprobs=n))[0]
        for n in (None, 2)
    )
    assert plain.logprobs is None and plain.prompt_logprobs is None
    assert scored.logprobs is not None and scored.prompt_logprobs is not None
    assert [p.token for p in scored.logprobs] == list(scored.tokens) == list(plain.tokens)
    assert all(len(p.top) == 2 and p.top[0] == (p.token, p.logprob) for p in scored.logprobs)
    assert scored.prompt_logprobs[0] is None
    assert [p.token for p in scored.prompt_logprobs if p] == ids[1:]


def test_no_tokens_may_be_asked_for(llm: LLM):
    (completion,) = llm.generate(PROMPTS[0], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert (completion.tokens, completion.text, completion.finish_reason) == ((), "", "length")
    assert completion.prompt_logprobs is not None and len(completion.prompt_logprobs) == completion.prompt_tokens


# What cannot work


@pytest.mark.parametrize(
    ("prompts", "params", "says", "code"),
    [
        (["the", [1, 99_999]], None, "^prompt 1: .*99999", None),
        (["the", "in", []], None, "^prompt 2: the prompt is empty", None),
        (["the", [3] * 512], None, "^prompt 1: .*512", "context_length_exceeded"),
        (["the", 3.5], None, "^prompt 1: a prompt is a string or a list of token ids, not a float", None),
        (["the", ["a", "b"]], None, "^prompt 1: .*'a' is not a token id", None),
        (["the"], SamplingParams(logit_bias={99_999: 1.0}), "^prompt 0: logit_bias", None),
        (["the", "in"], [SamplingParams()] * 3, "3 sampling parameters for 2 prompts", None),
    ],
)
def test_a_bad_request_is_named_before_anything_runs(llm: LLM, prompts, params, says: str, code: str | None):
    steps = llm._core.stats().steps
    with pytest.raises(RequestError, match=says) as error:
        llm.generate(prompts, params)
    assert error.value.code == code
    assert llm._core.stats().steps == steps and idle(llm)


def test_a_bad_setting_or_model_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="'max_seq'"):
        LLM(tmp_path, max_seq=3)
    with pytest.raises(ConfigError, match="dtype"):
        LLM(tmp_path, dtype="int3")
    with pytest.raises(CheckpointError, match="nowhere"):
        LLM(tmp_path / "nowhere")


# Interruption and the end


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises, also where whoever started the tests ignores it."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_what_runs_and_leaves_the_llm_usable(llm: LLM):
    before = made(llm.generate(PROMPTS, GREEDY))
    handler = signal.getsignal(signal.SIGINT)
    timer = threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS * 8, SamplingParams(max_tokens=400, ignore_eos=True))
    timer.join()
    assert signal.getsignal(signal.SIGINT) is handler
    assert idle(llm)
    assert made(llm.generate(PROMPTS, GREEDY)) == before


def test_threads_take_turns(llm: LLM):
    expected = [made(llm.generate(prompt, GREEDY)) for prompt in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda prompt: made(llm.generate(prompt, GREEDY)), PROMPTS)) == expected


def test_a_failed_step_is_raised_and_the_llm_refuses_more(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    with load(checkpoint) as llm:
        monkeypatch.setattr(llm._core._runner, "launch", lambda plan: 1 / 0)
        for says in ("ZeroDivisionError: division by zero", "cannot go on: ZeroDivisionError"):
            with pytest.raises(EngineUnavailableError, match=says):
                llm.generate(PROMPTS)


def test_close_frees_the_model(checkpoint: Path):
    llm = load(checkpoint)
    llm.generate("the", GREEDY)
    weight = weakref.ref(next(llm._core._runner._decoder.parameters()))  # type: ignore[attr-defined]
    llm.close()
    llm.close()
    gc.collect()
    assert weight() is None
    with pytest.raises(EngineUnavailableError, match="closed"):
        llm.generate("the", GREEDY)


def test_a_completion_is_a_public_type(llm: LLM):
    assert all(type(c) is Completion for c in llm.generate("the", SamplingParams(n=2, max_tokens=1)))
