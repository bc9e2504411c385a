"""A hit is a miss that computes less: the same tokens, in float64, whatever is cached and however it is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.support.scripted_drafter import ScriptedDrafter
from tests.support.tiny import make_tiny_checkpoint

from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.core import EngineCore
from headrace.engine.model_source import find_model
from headrace.llm import LLM
from headrace.scheduler.drafter import Drafter
from headrace.types import Request, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE, AT_ONCE, ANSWER = 8, 4, 4
LENGTHS = range(1, 3 * PAGE + 1)
"""Tokens of a prompt beyond what it shares."""
CHUNKS = range(1, 65)
SETTINGS = {"context": 1000, "max_seqs": AT_ONCE, "page_tokens": PAGE, "gpu_checkpoint_bytes": 2_000_000}
KINDS = (
    SamplingParams(temperature=0), SamplingParams(temperature=0, presence_penalty=0.6), SamplingParams(top_k=20, top_p=0.9),
    SamplingParams(temperature=0.8, min_p=0.05),
)


@pytest.fixture(scope="module", params=["hybrid", "attention", "windows"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = {"hybrid": "qwen3_5_text", "attention": "llama", "windows": "qwen3"}[request.param]
    window = {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2} if model == "qwen3" else {}
    return make_tiny_checkpoint(tmp_path_factory.mktemp(request.param) / "model", model, seed=4, config=window)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("hybrid") / "model", "qwen3_5_text", seed=6)


@dataclass
class Case:
    """What requests at once share, and how many tokens each has beyond that."""

    residue: int
    lengths: tuple[int, ...]

    def prefix(self) -> list[int]:
        rng = random.Random(self.residue)
        return [rng.randrange(3, 250) for _ in range(3 * PAGE + self.residue)]

    def prompts(self) -> list[list[int]]:
        """No two go on alike."""
        rng = random.Random(self.lengths[0])
        return [[*self.prefix(), 3 + place, *(rng.randrange(3, 250) for _ in range(length - 1))]
                for place, length in enumerate(self.lengths)]

    def params(self, salt: str) -> list[SamplingParams]:
        return [replace(kind, seed=length, max_tokens=ANSWER, cache_salt=salt, ignore_eos=True)
                for kind, length in zip(KINDS, self.lengths, strict=True)]


CASES = tuple(Case(residue, tuple(LENGTHS[first : first + AT_ONCE]))
              for residue in range(PAGE) for first in range(0, len(LENGTHS), AT_ONCE))


def check(checkpoint: Path, pairs: Sequence[tuple[int, Case]]) -> None:
    """pairs: chunk sizes and cases, which are run once behind a request for what they share, and once without it."""
    cold: dict[int, list[tuple[int, ...]]] = {}
    with LLM(checkpoint, device="cpu", dtype="float64", chunk_tokens=64, prefix_cache="off", **SETTINGS) as llm:
        for _, case in pairs:
            if id(case) not in cold:
                cold[id(case)] = [each.tokens for each in llm.generate(case.prompts(), case.params(""))]
    for chunk, residue in sorted({(chunk, case.residue) for chunk, case in pairs}):  # so that nothing has to be evicted
        with LLM(checkpoint, device="cpu", dtype="float64", chunk_tokens=chunk, **SETTINGS) as llm:
            for number, case in enumerate(case for size, case in pairs if (size, case.residue) == (chunk, residue)):
                _check_case(llm, case, cold[id(case)], f"{number}")


def windowed(llm: LLM) -> bool:
    return any(name == "kv pages 1" for name, _ in llm.info.budget)


def _check_case(llm: LLM, case: Case, cold: list[tuple[int, ...]], salt: str) -> None:
    shared = len(case.prefix())
    llm.generate([case.prefix()], SamplingParams(max_tokens=1, cache_salt=f"{salt} first"))
    behind = llm.generate(case.prompts(), case.params(f"{salt} first"))
    alone = llm.generate(case.prompts(), case.params(f"{salt} at once"))
    again = llm.generate(case.prompts(), case.params(f"{salt} at once"))
    for found in (behind, alone, again):
        assert [each.tokens for each in found] == cold, (case, salt)
    assert behind[0].cached_tokens == shared and alone[0].cached_tokens == 0
    if not windowed(llm):  # of windows no more pages are there than sequences need
        assert [each.cached_tokens for each in behind] == [shared] * AT_ONCE
        assert all(shared // PAGE * PAGE <= each.cached_tokens <= shared for each in alone[1:])
        assert all(each.cached_tokens >= shared for each in again)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_hit_equals_miss(checkpoint: Path, part: int) -> None:
    """A tenth of all, the same each time; less of what has no states, which is simpler."""
    every = [(chunk, case) for chunk in CHUNKS for case in CASES]
    share = 10 if "hybrid" in str(checkpoint) else 40
    check(checkpoint, random.Random(8).sample(every, len(every) // share)[part::4])


@pytest.mark.long
def test_hit_equals_miss_in_every_case(checkpoint: Path) -> None:
    check(checkpoint, [(chunk, case) for chunk in CHUNKS for case in CASES])


def test_a_whole_prompt_asked_again(checkpoint: Path) -> None:
    """All but its last token is there the second time, whose row is one that decodes; with its neighbours' salts in between."""
    rng = random.Random(13)
    prompts = [[rng.randrange(3, 250) for _ in range(rng.choice((1, 2, 3, PAGE, PAGE + 1, 40, 97)))] for _ in range(8)]
    params = [replace(kind, seed=3, max_tokens=5, ignore_eos=True, logprobs=0) for kind in KINDS * 2]
    with LLM(checkpoint, device="cpu", dtype="float64", prefix_cache="off", chunk_tokens=32, **SETTINGS) as llm:
        cold = llm.generate(prompts, params)
    with LLM(checkpoint, device="cpu", dtype="float64", chunk_tokens=32, **SETTINGS) as llm:
        for turn in range(3):
            for prompt, each, expected in zip(prompts, params, cold, strict=True):
                (found,) = llm.generate([prompt], replace(each, cache_salt=f"{each.temperature}{len(prompt)}"))
                assert found.tokens == expected.tokens and found.logprobs and expected.logprobs
                assert found.logprobs[0].logprob == pytest.approx(expected.logprobs[0].logprob, abs=1e-9)
                assert turn == 0 or found.cached_tokens == len(prompt) - 1 or windowed(llm)


def check_host(checkpoint: Path, pairs: Sequence[tuple[int, Case]]) -> None:
    """What is shared was computed and has made room for something else before all are asked at once."""
    settings = {**SETTINGS, "context": 248, "gpu_checkpoint_bytes": 60_000}
    with LLM(checkpoint, device="cpu", dtype="float64", chunk_tokens=64, prefix_cache="off", **SETTINGS) as llm:
        cold = {(case.residue, case.lengths): [each.tokens for each in llm.generate(case.prompts(), case.params(""))]
                for _, case in pairs}
        lines = dict(llm.info.budget)
    page = lines["kv pages 0"] // (AT_ONCE * 1000 // PAGE)
    cache_bytes = lines.get("state slots", 0) + (60_000 if "state slots" in lines else 0) + page * 31
    for number, (chunk, case) in enumerate(pairs):
        small = {**settings, "cache_bytes": cache_bytes, "ram_cache_bytes": 1_000_000}
        with LLM(checkpoint, device="cpu", dtype="float64", chunk_tokens=chunk, **small) as llm:
            llm.generate([case.prefix()], SamplingParams(max_tokens=1))
            llm.generate([[number % 200 + 3] * 243], SamplingParams(max_tokens=2))
            found = llm.generate(case.prompts(), case.params(""))
            assert [each.tokens for each in found] == cold[case.residue, case.lengths], (chunk, case)
            assert found[0].cached_tokens == len(case.prefix()) and llm._core.stats().restores_total > 0


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "llama"])
def test_hit_in_host_memory_equals_miss(model_type: str, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", model_type, seed=4)
    check_host(checkpoint, random.Random(9).sample([(chunk, case) for chunk in CHUNKS for case in CASES], 24))


@pytest.mark.long
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "llama"])
def test_hit_in_host_memory_equals_miss_in_many_cases(model_type: str, tmp_path: Path) -> None:
    """A fifth of all: each needs a cache of its own."""
    checkpoint = make_tiny_checkpoint(tmp_path / "model", model_type, seed=4)
    every = [(chunk, case) for chunk in CHUNKS for case in CASES]
    check_host(checkpoint, random.Random(10).sample(every, len(every) // 5))


def build(checkpoint: Path, drafter: Drafter | None, **settings: object) -> EngineCore:
    config = EngineConfig(device="cpu", dtype="float64", **{**SETTINGS, **settings})  # type: ignore[arg-type]
    return build_engine(find_model(checkpoint, config), config, None, drafter).core


def conversation(turns: int, vocab_size: int) -> list[list[int]]:
    """What the user says in each of them."""
    rng = random.Random(turns)
    return [[rng.randrange(3, vocab_size) for _ in range(rng.choice((1, 2, 7, 16, 17, 33)))] for _ in range(turns)]


def talk(core: EngineCore, says: Sequence[Sequence[int]], users: int, answer: int, answers: dict[str, list[int]]) -> list[int]:
    """Users have the same conversation with seeds of their own, turn by turn, all at once. Fills `answers`, by request; returns
    the last turn's cached tokens.
    """
    known: list[list[int]] = [[] for _ in range(users)]
    cached: list[int] = []
    for turn, said in enumerate(says):
        cached = [0] * users
        for user in range(users):
            known[user] += said
            params = replace(KINDS[user % len(KINDS)], stop_token_ids=(7, 8, 9))
            core.add(Request(f"{turn}/{user}", tuple(known[user]), params, 10 * turn + user, answer))
        found: dict[str, list[int]] = {}
        while core.has_work:
            for event in core.step():
                assert event.error is None
                found.setdefault(event.request, []).extend(event.tokens)
                cached[int(event.request.partition("/")[2])] = event.cached_tokens
        for name, tokens in found.items():
            known[int(name.partition("/")[2])] += tokens
        answers |= found
    return cached


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
@pytest.mark.parametrize("most", [0, 1, 5])
def test_rows_with_drafts_go_on_from_states_with_drafts_folded_in(hybrid: Path, most: int, loop: str) -> None:
    says, expected, answers = conversation(5, 250), {}, {}
    plain = build(hybrid, None, prefix_cache="off")
    talk(plain, says, 3, 14, expected)
    drafter = ScriptedDrafter(expected, most, 250, chances=(0.5, 0.9, 1.0)) if most else None
    core = build(hybrid, drafter, loop=loop, chunk_tokens=19)
    cached = talk(core, says, 3, 14, answers)
    assert answers == expected
    prompts = [sum(map(len, says[:-1])) + sum(len(expected[f"{turn}/{user}"]) for turn in range(4)) for user in range(3)]
    assert all(0 <= prompt - each <= 1 for prompt, each in zip(prompts, cached, strict=True)), "all but what is new"
    stats = core.stats()
    assert stats.kv_pages_used == stats.slots_used == 0 and stats.checkpoints_used > 3


def test_preempted_sequences_resume(checkpoint: Path) -> None:
    """Pages for little more than one sequence, so that others give way and go on, with and without states."""
    says, expected, answers = conversation(3, 250), {}, {}
    settings = {"context": 200, "max_seqs": 4, "chunk_tokens": 24, "page_tokens": 4}
    plain = build(checkpoint, None, **settings, prefix_cache="off")
    talk(plain, says, 4, 40, expected)
    config = EngineConfig(device="cpu", dtype="float64", **settings, gpu_checkpoint_bytes=200_000)  # type: ignore[arg-type]
    model = find_model(checkpoint, config)
    roomy = build_engine(model, config, None)
    lines = dict(roomy.info.budget)
    windows = sum(size for name, size in lines.items() if name.startswith("kv pages") and name != "kv pages 0")
    states = lines.get("state slots", 0) + lines.get("gpu checkpoints", 0)
    page = lines["kv pages 0"] // (4 * 50)
    tight = build_engine(model, replace(config, cache_bytes=states + windows + 52 * page), None).core
    talk(tight, says, 4, 40, answers)
    stats = tight.stats()
    assert answers == expected
    assert stats.preemptions_total > 0 and stats.kv_pages_used == 0 and stats.prefix_hits_total > 0


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "llama"])
@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_two_conversations_take_turns_where_there_is_room_for_one(model_type: str, loop: str, tmp_path: Path) -> None:
    """What one of them computed makes room for the other's, and comes back from host memory, to the last token."""
    checkpoint = make_tiny_checkpoint(tmp_path / "model", model_type, seed=8)
    settings = {"context": 272, "max_seqs": 1, "chunk_tokens": 40, "page_tokens": 4, "gpu_checkpoint_bytes": 60_000}
    config = EngineConfig(device="cpu", dtype="float64", loop=loop, **settings)  # type: ignore[arg-type]
    model = find_model(checkpoint, config)
    lines = dict(build_engine(model, config, None).info.budget)
    kept = replace(config, cache_bytes=sum(lines.get(name, 0) for name in ("kv pages 0", "state slots", "gpu checkpoints")),
                   ram_cache_bytes=4_000_000)
    engine, bare = build_engine(model, kept, None), build_engine(model, replace(config, prefix_cache="off"), None).core
    core, rng, known, missed = engine.core, random.Random(1), {"a": [], "b": []}, []  # type: ignore[var-annotated]
    for turn in range(10):
        name = "ab"[turn % 2]
        known[name] += [rng.randrange(3, 250) for _ in range(30)]
        asked = Request(f"{turn}", tuple(known[name]), SamplingParams(temperature=0.7), turn, 22)
        found, cached = _answer(core, asked)
        assert found == _answer(bare, asked)[0]
        missed.append(len(known[name]) - cached - 30)
        known[name] += found
    assert len(known["a"]) == 260 and missed[2:] == [1] * 8, "of an answer the last token is not computed"
    assert core.stats().restores_total >= 3 and any("in host memory" in note for note in engine.info.notes)


def _answer(core: EngineCore, request: Request) -> tuple[list[int], int]:
    core.add(request)
    tokens, cached = [], 0
    while core.has_work:
        for event in core.step():
            assert event.error is None
            tokens += event.tokens
            cached = event.cached_tokens
    return tokens, cached


@pytest.mark.parametrize("most", [0, 5])
def test_what_comes_back_from_host_memory_in_company(hybrid: Path, most: int) -> None:
    says, expected, answers = conversation(5, 250), {}, {}
    settings = {"context": 240, "max_seqs": 4, "chunk_tokens": 24, "page_tokens": 4, "gpu_checkpoint_bytes": 40_000}
    talk(build(hybrid, None, **settings, prefix_cache="off"), says, 4, 20, expected)
    drafter = ScriptedDrafter(expected, most, 250, chances=(0.5, 0.9, 1.0)) if most else None
    config = EngineConfig(device="cpu", dtype="float64", loop="overlapped", **settings)  # type: ignore[arg-type]
    model = find_model(hybrid, config)
    lines = dict(build_engine(model, config, None).info.budget)
    cache_bytes = lines["state slots"] + lines["gpu checkpoints"] + 62 * (lines["kv pages 0"] // 240)
    core = build_engine(model, replace(config, cache_bytes=cache_bytes, ram_cache_bytes=8_000_000), None, drafter).core
    talk(core, says, 4, 20, answers)
    stats = core.stats()
    assert answers == expected
    assert stats.restores_total > 0 and stats.preemptions_total > 0 and stats.kv_pages_used == 0
