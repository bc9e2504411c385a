"""Drafts by a DFlash2 drafter through the whole engine, in float64: no token changes, and a prefix hit drafts as a cold run."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny import make_tiny_checkpoint
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace.config import EngineConfig
from headrace.engine.build import BuiltEngine, build_engine
from headrace.engine.model_source import find_model
from headrace.errors import CheckpointError, ConfigError
from headrace.llm import LLM
from headrace.runner.drafter_rehearsal import rehearse_drafter
from headrace.speculate.dflash import DFlashDrafter
from headrace.speculate.drafter import Asked, Proposal
from headrace.speculate.pace import FixedPace
from headrace.types import Request, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY, BLOCK, WINDOW = 24, 5, 20
CONFIG = EngineConfig(device="cpu", dtype="float64", context=160, max_seqs=4, page_tokens=4, chunk_tokens=18)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(
        tmp_path_factory.mktemp("hybrid") / "model", "qwen3_5_text", seed=6, config={"vocab_size": VOCABULARY}
    )


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = dflash_config(
        VOCABULARY, sliding_window=WINDOW, inner={"block_size": BLOCK, "selector_top_k": 16, "target_layer_ids": [0, 2, 3]}
    )
    return write_dflash(tmp_path_factory.mktemp("drafter") / "dflash2", config, dflash_tensors(config, 4))


class ChangingPace(FixedPace):
    """Another number of drafts in every row of every step, none among them, and now and then none for many steps."""

    def __init__(self, most: int, seed: int = 0) -> None:
        super().__init__(most, most)
        self._rng, self._idle = random.Random(seed), 0

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        self._idle = self._idle - 1 if self._idle else self._rng.choice((0,) * 20 + (12, 30))
        counts = tuple(0 if self._idle else self._rng.randint(0, limit) for limit in limits)
        self.chosen = sum(counts)
        return counts


@dataclass(frozen=True)
class Answer:
    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    cached: int


def engine(path: Path, drafter: Path | None, pace: FixedPace | None = None, **changed: Any) -> BuiltEngine:
    more: dict[str, Any] = {"speculate": "dflash", "drafter": str(drafter)} if drafter else {"speculate": "off"}
    config = replace(CONFIG, **more, **changed)
    return build_engine(find_model(path, config), config, None, pace=pace)


def answers(built: BuiltEngine, requests: Sequence[Request], *, together: bool = True) -> dict[str, Answer]:
    core, tokens = built.core, defaultdict[str, list[int]](list)
    told: dict[str, tuple[int, int, int]] = {}
    waiting = list(requests)
    while waiting or core.has_work:
        if waiting and (together or not core.has_work):
            core.add(waiting.pop(0))
        for event in core.step():
            tokens[event.request] += event.tokens
            told[event.request] = (event.drafted_tokens, event.accepted_tokens, event.cached_tokens)
    return {name: Answer(tuple(found), *told[name]) for name, found in tokens.items()}


def requests(count: int = 7, **changed: Any) -> list[Request]:
    """Greedy ones and such as are drawn, at temperatures at which a random drafter is often right: the noise is the same."""
    rng, made = random.Random(3), []
    for number in range(count):
        prompt = tuple(rng.randrange(VOCABULARY) for _ in range(rng.choice((3, 17, 19, 40, 61))))
        params = SamplingParams(temperature=(0.0, 2.0, 4.0)[number % 3], seed=number, **changed)
        made.append(Request(f"r{number}", prompt, params, seed=number, max_tokens=45))
    return made


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_it_changes_no_token(hybrid: Path, drafter: Path, loop: str) -> None:
    expected = answers(engine(hybrid, None, loop=loop), requests())
    for most in range(1, BLOCK):
        for pace in (FixedPace(most, most), ChangingPace(most, most)):
            found = answers(engine(hybrid, drafter, pace, loop=loop, draft_tokens=most), requests())
            assert {name: each.tokens for name, each in found.items()} == {name: a.tokens for name, a in expected.items()}
            drafted, accepted = (sum(getattr(a, name) for a in found.values()) for name in ("drafted", "accepted"))
            assert drafted > 50 and drafted > accepted > 10, (most, drafted, accepted)


def test_a_rehearsal_leaves_nothing_behind(hybrid: Path, drafter: Path) -> None:
    """Compiled kernels are for a GPU; here what is rehearsed runs."""
    found = []
    for rehearsed in (False, True):
        built = engine(hybrid, drafter, FixedPace(BLOCK - 1, BLOCK - 1))
        drafting = built.runner._drafting
        assert drafting is not None
        if rehearsed:
            weight, slots, tokens = drafting._decoder.embedding.weight, built.info.max_seqs, built.info.chunk_tokens
            rehearse_drafter(drafting.proposer, drafting._packer, slots, tokens, weight.shape[1], weight.dtype)
            assert not drafting.proposer.proposed.any()
        found.append(answers(built, requests()))
    assert found[0] == found[1]


def test_preemption_changes_no_token(hybrid: Path, drafter: Path) -> None:
    """Pages for fewer tokens than four sequences have; rows give way and come back, from the prefix cache or not."""
    expected = answers(engine(hybrid, None), requests())
    for prefix_cache in ("on", "off"):
        built = engine(
            hybrid, drafter, ChangingPace(BLOCK - 1), cache_bytes=engine_bytes(hybrid, drafter, 190), prefix_cache=prefix_cache
        )
        found = answers(built, requests())
        assert {name: each.tokens for name, each in found.items()} == {name: a.tokens for name, a in expected.items()}
        assert built.core.stats().preemptions_total > 0


def engine_bytes(path: Path, drafter: Path, tokens: int) -> int:
    """Of a cache of four states and pages of so many tokens."""
    lines = dict(engine(path, drafter, FixedPace(1, 1), prefix_cache="off").info.budget)
    return lines["state slots"] + tokens * lines["kv pages 0"] // (4 * CONFIG.context)  # type: ignore[operator]


Proposals = dict[int, tuple[int, ...]]


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proposals]:
    """What is proposed behind each position, of whoever is alone in an engine."""
    found: Proposals = {}
    propose = DFlashDrafter.propose

    def noted(self: DFlashDrafter, asked: Asked) -> Proposal:
        proposal = propose(self, asked)
        rows = (part.tolist() for part in (asked.slots, asked.positions, proposal.tokens))
        for slot, position, drafts in zip(*rows, strict=True):
            if slot < self._padding:
                found[position] = tuple(drafts)
        return proposal

    monkeypatch.setattr(DFlashDrafter, "propose", noted)
    yield found


def same_at_all_in_common(hit: Proposals, cold: Proposals) -> None:
    """Their rows need not begin at the same tokens: prompts are cut where a state is kept."""
    common = hit.keys() & cold.keys()
    assert len(common) > 5
    assert {position: hit[position] for position in common} == {position: cold[position] for position in common}


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_after_a_hit_it_drafts_as_cold(hybrid: Path, drafter: Path, loop: str, proposed: Proposals) -> None:
    """Prompts that go on from a prompt, or from an answer, at every residue of a page: the same tokens and the same proposals
    as where nothing was kept.
    """
    rng, hits = random.Random(5), 0
    built = engine(hybrid, drafter, FixedPace(BLOCK - 1, BLOCK - 1), loop=loop, gpu_checkpoint_bytes=1 << 20)
    for residue in range(CONFIG.page_tokens):
        begin = tuple(rng.randrange(VOCABULARY) for _ in range(32 + residue))
        first = request("first", begin, "kept", 1)
        answer = answers(built, [first], together=False)["first"].tokens
        for kind, prompt in (("prompt", begin), ("answer", begin + answer)):
            longer = (*prompt, *(rng.randrange(VOCABULARY) for _ in range(7)))
            found = []
            for name, salt in (("cold", f"new {residue} {kind}"), ("hit", "kept")):
                proposed.clear()
                found.append((answers(built, [request(name, longer, salt, 2)], together=False)[name], dict(proposed)))
            (cold, cold_proposals), (hit, hit_proposals) = found
            assert cold.cached == 0 and hit.cached > 0
            hits += hit.cached
            assert hit.tokens == cold.tokens and cold.accepted > 5
            same_at_all_in_common(hit_proposals, cold_proposals)
    assert hits > 32 * 4 * 2


def request(name: str, prompt: tuple[int, ...], salt: str, seed: int) -> Request:
    params = SamplingParams(temperature=3.0, seed=seed)
    return Request(f"{name}", prompt, params, seed=seed, max_tokens=30, salt=salt)


def llm(path: Path, drafter: Path | None, **changed: Any) -> LLM:
    more = {"speculate": "dflash", "drafter": str(drafter)} if drafter else {}
    names = ("device", "dtype", "context", "max_seqs", "page_tokens", "chunk_tokens")
    settings = {name: getattr(CONFIG, name) for name in names}
    return LLM(path, **{**settings, **more, **changed})


def outcome(llm: LLM, prompt: tuple[int, ...]) -> Answer:
    (found,) = llm.generate([list(prompt)], SamplingParams(temperature=3.0, seed=5, max_tokens=30, ignore_eos=True))
    return Answer(tuple(found.tokens), found.drafted_tokens, found.accepted_tokens, found.cached_tokens)


def test_after_a_hit_in_host_memory_or_on_ssd_it_drafts_as_cold(
    hybrid: Path, drafter: Path, tmp_path: Path, proposed: Proposals
) -> None:
    def ask(engine: LLM, prompt: tuple[int, ...]) -> tuple[Answer, Proposals]:
        proposed.clear()
        return outcome(engine, prompt), dict(proposed)

    rng = random.Random(9)
    lengths = range(60, 60 + CONFIG.page_tokens)  # whose keys and values are as large as a state
    begins = [tuple(rng.randrange(3, VOCABULARY) for _ in range(length)) for length in lengths]
    asked = [(*begin, *(rng.randrange(3, VOCABULARY) for _ in range(6))) for begin in begins]
    with llm(hybrid, drafter, prefix_cache="off") as engine:
        lines = dict(engine.info.budget)
    state, page = lines["state slots"] // 4, lines["kv pages 0"] // (4 * CONFIG.context // 4)  # type: ignore[operator]
    small: dict[str, Any] = {"gpu_checkpoint_bytes": 2 * state, "cache_bytes": 6 * state + 60 * page,
             "ram_cache_bytes": 64 * state + 600 * page, "context": 110}
    with llm(hybrid, drafter, **small) as engine:
        cold = [ask(engine, prompt) for prompt in asked]
    small["ssd_cache"] = str(tmp_path / "ssd")
    for _ in range(2):  # the second finds all of it on SSD
        with llm(hybrid, drafter, **small) as engine:
            for begin in begins:
                outcome(engine, begin)
            hits = [ask(engine, prompt) for prompt in asked]
            stats = engine._core.stats()
        for (hit, hit_proposals), (found, cold_proposals) in zip(hits, cold, strict=True):
            assert hit.cached >= 59 and found.cached == 0 and hit.tokens == found.tokens
            same_at_all_in_common(hit_proposals, cold_proposals)
        assert stats.restores_total > 0
    assert stats.ssd_hits_total > 0
    with llm(hybrid, None, **small) as engine:  # whose states have no windows
        assert [outcome(engine, prompt).tokens for prompt in asked] == [each.tokens for each, _ in cold]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_it_takes_what_the_budget_says(hybrid: Path, drafter: Path, dtype: str) -> None:
    built = engine(hybrid, drafter, FixedPace(3, 3), dtype=dtype, gpu_checkpoint_bytes=1 << 17)
    held, lines = built.runner.held_bytes(), dict(built.info.budget)
    assert held["weights"] == sum(size for name, size in lines.items() if name.startswith(("weights", "wide weights")))
    for name in ("draft inputs", "kv pages 0", "state slots", "gpu checkpoints", "padding"):
        assert held[name] == lines[name], name
    without = dict(engine(hybrid, None, dtype=dtype, gpu_checkpoint_bytes=1 << 17).info.budget)
    size = {"float64": 8, "float32": 4, "bfloat16": 2}[dtype]
    window = WINDOW * (2 * 2 * 2 * 8 * size + 8)  # two layers of keys and values of two heads, and which token it is
    assert lines["state slots"] - without["state slots"] == 4 * window and lines["weights dflash"] > 0


def test_lookup_behind_its_drafts_changes_no_token(hybrid: Path, drafter: Path) -> None:
    """Up to 15 drafts of a row, of which the drafter makes 4."""
    repeating = [replace(each, prompt=each.prompt[:3] * 9) for each in requests()]
    expected = answers(engine(hybrid, None), repeating)
    built = engine(hybrid, drafter, verify_tokens=15)
    assert {n: a.tokens for n, a in answers(built, repeating).items()} == {n: a.tokens for n, a in expected.items()}
    drafted = built.core.stats().drafted
    assert len(drafted) == 15 and drafted[-1] > 0


def test_what_cannot_be_is_named(hybrid: Path, drafter: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs --drafter DIR"):
        config = replace(CONFIG, speculate="dflash")
        build_engine(find_model(hybrid, config), config, None)
    config = dflash_config(VOCABULARY + 1)
    other = write_dflash(tmp_path / "other", config, dflash_tensors(config))
    with pytest.raises(CheckpointError, match="its vocab_size is 25, that of the target 24"):
        engine(hybrid, other)


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_on_a_gpu_captured_or_not_tokens_are_those_without_drafts(tmp_path: Path, device: str = "cuda") -> None:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "head_dim": 32}
    sizes |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
    path = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=7, config=sizes)
    inner = {"block_size": BLOCK, "selector_top_k": 16, "target_layer_ids": [0, 3]}
    config = dflash_config(VOCABULARY, hidden=64, sliding_window=WINDOW, inner=inner)
    drafter = write_dflash(tmp_path / "drafter", config, dflash_tensors(config, 4))
    settings: dict[str, Any] = {"device": device, "dtype": "float32", "graphs": "off", "cache_bytes": 50_000_000}
    half = settings | ({"dtype": "float16", "graphs": "on"} if device == "cuda" else {})  # float32 cannot be captured
    steady, changing = partial(FixedPace, BLOCK - 1, BLOCK - 1), partial(ChangingPace, BLOCK - 1)
    plain = answers(engine(path, None, **settings), requests())
    eager = [answers(engine(path, drafter, pace(), **half | {"graphs": "off"}), requests()) for pace in (steady, changing)]
    accepted = []
    for expected, pace, more in (
        (plain, steady, settings), (plain, changing, settings | {"loop": "overlapped"}), (eager[0], steady, half),
        (eager[1], changing, half), (eager[0], steady, half | {"loop": "overlapped"}),
    ):
        found = answers(engine(path, drafter, pace(), **more), requests())
        same = sum(found[name].tokens == answer.tokens for name, answer in expected.items())
        assert same >= len(expected) - 1, "in float32 two near each other may change places"
        accepted.append(sum(answer.accepted for answer in found.values()))
    assert min(accepted) > 0 and sum(accepted) > 150, "how many a changing pace gives a chance depends on the time"
