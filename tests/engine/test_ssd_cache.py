"""The SSD tier of an engine: a hit is a miss that computes less, after any restart and whatever became of the files."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.test_prefix_cache import CASES, CHUNKS, SETTINGS, Case
from tests.support.server_process import ServerProcess
from tests.support.tiny import make_tiny_checkpoint
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace import loader
from headrace.cache.ssd import SsdStore
from headrace.cache.ssd.disk import Disk
from headrace.cache.ssd.key import key_of
from headrace.config import EngineConfig
from headrace.engine.core import PendingStep
from headrace.engine.model_source import find_model
from headrace.errors import ConfigError, HeadraceError
from headrace.llm import LLM
from headrace.plan import prefix_cache
from headrace.scheduler.prefixes import MOST_READS
from headrace.types import Completion, SamplingParams, StepPlan

MODELS = ("qwen3_5_text", "llama")
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(autouse=True)
def small_blocks(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MOST_BLOCK_PAGES", 2)


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "model", request.param, seed=4)


def engine(checkpoint: Path, **settings: Any) -> LLM:
    return LLM(checkpoint, device="cpu", dtype="float64", **{**SETTINGS, "context": 400, **settings})


def prompt(seed: int, tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(tokens)]


def check(checkpoint: Path, directory: Path, chunk: int, case: Case) -> list[int]:
    """What is shared is computed in one engine, given up there on the device and in host memory, and asked for again; then by
    the next engine. Returns how many hits of either came from the SSD.
    """
    hits = []
    with engine(checkpoint, prefix_cache="off", chunk_tokens=64) as llm:
        cold = [each.tokens for each in llm.generate(case.prompts(), case.params(""))]
        lines = dict(llm.info.budget)
    page = lines["kv pages 0"] // (4 * 400 // 8)
    states = lines.get("state slots", 0) // 4
    small = {"context": 80, "chunk_tokens": chunk, "cache_bytes": 4 * states + 60_000 * bool(states) + 31 * page,
             "gpu_checkpoint_bytes": 60_000 if states else 0, "ram_cache_bytes": 16 * states + 16 * page,
             "ssd_cache": str(directory), "ssd_cache_bytes": 1 << 28}
    for start in range(2):
        with engine(checkpoint, **small) as llm:
            if start == 0:
                llm.generate([case.prefix()], SamplingParams(max_tokens=1))
                for other in range(6):
                    _flush(llm)
                    llm.generate([prompt(other, 70)], SamplingParams(max_tokens=1))
            found = llm.generate(case.prompts(), case.params(""))
            assert [each.tokens for each in found] == cold, (start, chunk, case)
            assert found[0].cached_tokens >= len(case.prefix()) - 1, (start, chunk, case)
            hits.append(llm._core.stats().ssd_hits_total)
    return hits


def check_all(checkpoint: Path, directory: Path, pairs: list[tuple[int, Case]]) -> None:
    hits = [check(checkpoint, directory / f"ssd {number}", chunk, case) for number, (chunk, case) in enumerate(pairs)]
    assert all(later for _, later in hits) and sum(bool(first) for first, _ in hits) > len(hits) // 4


def test_hit_on_ssd_equals_miss(checkpoint: Path, tmp_path: Path) -> None:
    every = [(chunk, case) for chunk in CHUNKS for case in CASES]
    check_all(checkpoint, tmp_path, random.Random(11).sample(every, 8))


@pytest.mark.long
def test_hit_on_ssd_equals_miss_in_many_cases(checkpoint: Path, tmp_path: Path) -> None:
    every = [(chunk, case) for chunk in CHUNKS for case in CASES]
    check_all(checkpoint, tmp_path, random.Random(12).sample(every, len(every) // 8))


def conversation(llm: LLM, turns: int, seed: int) -> list[Completion]:
    """Each turn begins with all before it."""
    known, made = prompt(seed, 61), []
    for turn in range(turns):
        (answer,) = llm.generate([known], GREEDY)
        made.append(answer)
        known = [*known, *answer.tokens, *prompt(100 * seed + turn, 9)]
    return made


def test_a_restart_goes_on_where_it_was(checkpoint: Path, tmp_path: Path) -> None:
    """Every turn in an engine of its own, without host memory asked for: all but what is new is there."""
    with engine(checkpoint, prefix_cache="off") as llm:
        cold = conversation(llm, 4, 1)
    for turns in range(1, 5):
        with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
            assert any("in host memory" in note for note in llm.info.notes)
            (note,) = (note for note in llm.info.notes if note.startswith("ssd cache"))
            assert note.startswith("ssd cache: 0 of 68,719,476,736 bytes in") == (turns == 1)
            found = conversation(llm, turns, 1)
        assert [each.tokens for each in found] == [each.tokens for each in cold[:turns]]
        assert turns == 1 or found[0].cached_tokens >= 60 - 16
        assert turns < 3 or found[turns - 2].cached_tokens >= found[turns - 2].prompt_tokens - 10


@pytest.mark.parametrize("order", [("off", "mtp"), ("mtp", "off"), ("mtp", "mtp"), ("dflash", "mtp"), ("off", "dflash")])
def test_engines_with_and_without_a_drafter_share_what_is_the_models(tmp_path: Path, order: tuple[str, str]) -> None:
    """auto may come out another way after a restart. Drafts are as good as ever only if their drafter's part is there."""
    path = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=4, mtp=True)
    config = dflash_config(find_model(path, EngineConfig()).spec.vocab_size)
    write_dflash(path / "drafter", config, dflash_tensors(config))
    with engine(path, prefix_cache="off", speculate="off") as llm:
        cold = conversation(llm, 2, 1)
    found = []
    for speculate in order:
        with engine(path, speculate=speculate, ssd_cache=str(tmp_path / "ssd")) as llm:
            found.append(conversation(llm, 2, 1))
            stats = llm._core.stats()
        assert [each.tokens for each in found[-1]] == [each.tokens for each in cold]
    first, later = (turns[0] for turns in found)
    assert first.cached_tokens == 0 and later.cached_tokens >= 60 - 16
    shared = order[0] == order[1] or order[1] == "off"
    assert dict(stats.ssd_misses).get("drafter", 0) == 0 if shared else dict(stats.ssd_misses)["drafter"] > 0
    assert not shared or order[1] == "off" or found[1][1].accepted_tokens == found[0][1].accepted_tokens


def test_another_model_or_type_of_the_same_directory_is_a_miss(checkpoint: Path, tmp_path: Path) -> None:
    other = make_tiny_checkpoint(tmp_path / "other", "qwen3_5_text", seed=5)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        llm.generate([prompt(1, 99)], GREEDY)
    with engine(other, ssd_cache=str(tmp_path / "ssd")) as llm:
        assert llm.generate([prompt(1, 99)], GREEDY)[0].cached_tokens == 0
    with LLM(checkpoint, device="cpu", dtype="float32", **{**SETTINGS, "ssd_cache": str(tmp_path / "ssd")}) as llm:
        assert llm.generate([prompt(1, 99)], GREEDY)[0].cached_tokens == 0
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        salted = SamplingParams(temperature=0, max_tokens=6, cache_salt="other")
        assert llm.generate([prompt(1, 99)], salted)[0].cached_tokens == 0


def files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "entries").rglob("*") if path.is_file())


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a flipped bit": _flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"something else" * 1000),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_miss_and_a_line(
    checkpoint: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with engine(checkpoint, prefix_cache="off") as llm:
        (cold,) = llm.generate([prompt(1, 99)], GREEDY)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        llm.generate([prompt(1, 99)], GREEDY)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm, caplog.at_level(logging.INFO, "headrace"):
        for path in files(tmp_path / "ssd"):
            DAMAGES[damage](path)
        (found,) = llm.generate([prompt(1, 99)], GREEDY)
        assert found.tokens == cold.tokens and found.cached_tokens == 0
        assert dict(llm._core.stats().prefix_misses) == {"ssd": 1}
        assert any("ssd cache: a miss" in record.getMessage() for record in caplog.records)


def grown(made: list[Completion], seed: int) -> list[int]:
    """What a conversation's next turn would begin with."""
    known = prompt(seed, 61)
    for turn, answer in enumerate(made):
        known += [*answer.tokens, *prompt(100 * seed + turn, 9)]
    return known


def states(directory: Path) -> list[Path]:
    """Files of states; the longest prefix is the last."""
    return sorted((path for path in files(directory) if path.name.startswith("c-")), key=lambda path: key_of(path.name).end)


@pytest.mark.parametrize("damaged", [1, 2])
def test_what_is_intact_before_damaged_files_is_used(tmp_path: Path, damaged: int) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=4)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        known = grown(conversation(llm, 3, 1), 1)
    with engine(checkpoint, prefix_cache="off") as llm:
        (cold,) = llm.generate([known], GREEDY)
    *_, intact = states(tmp_path / "ssd")[:-damaged]
    for path in states(tmp_path / "ssd")[-damaged:]:
        os.truncate(path, 100)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        (found,) = llm.generate([known], GREEDY)
        assert found.tokens == cold.tokens and found.cached_tokens >= key_of(intact.name).end
        assert dict(llm._core.stats().ssd_misses) == {"truncated": damaged} and llm._core.stats().ssd_hits_total == 1


def test_a_directory_of_damaged_files_costs_a_few_reads(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=4)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        known = grown(conversation(llm, 6, 1), 1)
    for path in states(tmp_path / "ssd"):
        os.truncate(path, 100)
    with engine(checkpoint, prefix_cache="off") as llm:
        (cold,) = llm.generate([known], GREEDY)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        (found,) = llm.generate([known], GREEDY)
        assert found.tokens == cold.tokens
        assert 1 <= dict(llm._core.stats().ssd_misses)["truncated"] <= MOST_READS


def test_pages_without_a_state_are_no_cold_prompt(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=4)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        known = grown(conversation(llm, 3, 1), 1)
    for path in states(tmp_path / "ssd"):
        path.unlink()
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        assert [each.cached_tokens for each in llm.generate([known], GREEDY)] == [0]
        llm.generate([prompt(77, 99)], GREEDY)
        assert dict(llm._core.stats().prefix_misses) == {"no_checkpoint": 1, "cold": 1}


def test_a_full_disk_costs_a_line(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                  caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with engine(checkpoint, prefix_cache="off") as llm:
        cold = conversation(llm, 3, 2)
    monkeypatch.setattr(Disk, "write", full)
    with caplog.at_level(logging.INFO, "headrace"):
        for _ in range(2):
            with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
                assert [each.tokens for each in conversation(llm, 3, 2)] == [each.tokens for each in cold]
    assert sum("No space left" in record.getMessage() for record in caplog.records) == 2 and not files(tmp_path / "ssd")


def test_two_engines_on_one_directory(checkpoint: Path, tmp_path: Path) -> None:
    """What one has written the other finds, once it has looked."""
    with engine(checkpoint, prefix_cache="off") as llm:
        cold = {seed: conversation(llm, 3, seed) for seed in range(3)}
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as one, engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as two:
        for seed in range(3):
            for llm in (one, two) if seed % 2 else (two, one):
                assert [each.tokens for each in conversation(llm, 3, seed)] == [each.tokens for each in cold[seed]]
                _flush(llm)
                for each in (one, two):
                    _store(each)._refresh()
        assert two._core.stats().ssd_hits_total > 0 and one._core.stats().ssd_hits_total > 0


def _store(llm: LLM) -> SsdStore:
    store: SsdStore = llm._core._scheduler._prefixes.host.ssd._copies._store  # type: ignore[attr-defined]
    return store


def _flush(llm: LLM) -> None:
    """As an idle server does."""
    for _ in range(3):
        llm._core.step()
    while llm._core.stats().ssd_waiting:
        threading.Event().wait(0.01)
        llm._core.step()


def test_others_go_on_while_one_waits_for_a_slow_disk(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(checkpoint, prefix_cache="off") as llm:
        (cold,) = llm.generate([prompt(1, 99)], GREEDY)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        llm.generate([prompt(1, 99)], GREEDY)
    goes_on, get = threading.Event(), SsdStore.get

    def slow(*arguments: Any) -> bool:
        assert goes_on.wait(60)
        return get(*arguments)

    monkeypatch.setattr(SsdStore, "get", slow)
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd"), max_seqs=2) as llm:
        ended: list[str] = []
        take = llm._take

        def note(choice: Any, event: Any) -> None:
            take(choice, event)
            if event.finish_reason is not None:
                ended.append(event.request)
                goes_on.set()

        monkeypatch.setattr(llm, "_take", note)
        waited, other = llm.generate([prompt(1, 99), prompt(7, 50)], GREEDY)
        assert ended == ["1-0", "0-0"] and waited.tokens == cold.tokens
        assert waited.cached_tokens > 80 and other.cached_tokens == 0


def test_nothing_is_written_of_what_a_broken_engine_has(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a step that failed the device's memory cannot be trusted."""
    with engine(checkpoint, ssd_cache=str(tmp_path / "ssd")) as llm:
        llm.generate([prompt(1, 99)], GREEDY)
        _flush(llm)
        before, launch, last = files(tmp_path / "ssd"), llm._core._runner.launch, llm._core.stats().steps + 12

        def fails(plan: StepPlan) -> PendingStep:
            if plan.step > last:
                raise RuntimeError("the device fell over")
            return launch(plan)

        monkeypatch.setattr(llm._core._runner, "launch", fails)
        with pytest.raises(HeadraceError, match="fell over"):
            llm.generate([prompt(2, 99)], replace(GREEDY, max_tokens=30))
    assert files(tmp_path / "ssd") == before != []


def test_what_a_killed_server_has_written_is_there(checkpoint: Path, tmp_path: Path) -> None:
    flags = ("--device", "cpu", "--dtype", "float64", "--context", "400", "--max-seqs", "2", "--ssd-cache", f"{tmp_path}/ssd")
    body = {"prompt": prompt(1, 300), "max_tokens": 6, "temperature": 0, "ignore_eos": True}

    def ask(url: str) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status().json()
        return answer

    killed = ServerProcess(checkpoint, *flags, log=tmp_path / "log 1").__enter__()
    try:
        cold = ask(killed.url)
        for _ in range(100):
            if 'headrace_prefix_bytes{kind="entries",tier="ssd"} 0.0' not in httpx.get(f"{killed.url}/metrics").text:
                break
            threading.Event().wait(0.1)
    finally:
        killed.kill()
    with ServerProcess(checkpoint, *flags, log=tmp_path / "log 2") as server:
        warm = ask(server.url)
        assert warm["choices"] == cold["choices"]
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
        assert 'headrace_prefix_restores_total{tier="ssd"} 1.0' in httpx.get(f"{server.url}/metrics").text


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"ssd_cache_bytes": 0}, "ssd_cache_bytes must be 1 or more"), ({"ssd_cache_bytes": 9}, "fewer than the .* of one entry"),
     ({"ram_cache_bytes": 9}, "host memory on the way, and ram_cache_bytes 9 are too few"),
     ({"ssd_cache": "/proc/headrace"}, "the SSD cache cannot be kept in /proc/headrace: "),
     ({"ssd_cache": __file__}, "the SSD cache cannot be kept in .*test_ssd_cache.py: ")],
)
def test_what_cannot_be_kept_is_refused_before_weights_are_read(
    checkpoint: Path, tmp_path: Path, settings: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "load_weights", None)
    with pytest.raises(ConfigError, match=why):
        engine(checkpoint, **{"ssd_cache": str(tmp_path / "ssd"), **settings})


def test_a_directory_without_a_prefix_cache_is_said_to_be_of_no_use(checkpoint: Path, tmp_path: Path) -> None:
    with engine(checkpoint, prefix_cache="off", ssd_cache=str(tmp_path / "ssd")) as llm:
        assert f"ssd cache: {tmp_path}/ssd is not used, since nothing is kept: the prefix cache is off" in llm.info.notes
    assert not (tmp_path / "ssd").exists()


@pytest.mark.parametrize("settings", [{"ram_cache_bytes": 1 << 20}, {"ssd_cache": "/tmp/none"}])
def test_windows_are_refused_by_name(tmp_path: Path, settings: dict[str, Any]) -> None:
    window = {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2}
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "qwen3", seed=4, config=window)
    with pytest.raises(ConfigError, match=f"{next(iter(settings))}: qwen3 has layers with a window of 13 tokens"):
        engine(checkpoint, **settings)
