"""Rows with drafts: the tokens, log-probabilities and ends are those of rows without, in float64 exactly."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.scripted_drafter import BalancedDrafter, ScriptedDrafter
from tests.support.tiny import make_tiny_checkpoint

from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.core import EngineCore
from headrace.engine.model_source import find_model
from headrace.plan.graph_rows import row_buckets
from headrace.runner import draft_graphs, forward_graphs
from headrace.runner.draft_graphs import DraftGraph
from headrace.runner.graphs import MemoryCounts
from headrace.runner.proposal_graphs import ProposalGraph
from headrace.scheduler.drafter import Drafter
from headrace.types import (
    Admission,
    PageUpdate,
    Request,
    Row,
    SamplingParams,
    StepPlan,
    StepResult,
    TokenEvent,
    TokenLogprob,
)

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = (
    {"temperature": 0.0},
    {"top_k": 20, "top_p": 0.95},
    {"temperature": 0.7, "min_p": 0.05, "logprobs": 3},
    {"temperature": 1.3, "top_p": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 0, "prompt_logprobs": 1},
    {"top_k": 5, "min_tokens": 25, "logit_bias": {7: 2.0, 9: -4.0}},
    {"temperature": 0.9, "stop_token_ids": tuple(range(20, 24)), "min_tokens": 9, "frequency_penalty": 1.0},
    {},
)
MOST = 5


@pytest.fixture(scope="module", params=["qwen3_5_text", "qwen3", "llama"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    window = {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2} if request.param == "qwen3" else {}
    return make_tiny_checkpoint(tmp_path_factory.mktemp(request.param) / "model", request.param, seed=4, config=window)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("hybrid") / "model", "qwen3_5_text", seed=6)


def make_requests(count: int, vocab_size: int, longest: int = 70) -> list[Request]:
    """Prompts whose last chunks have every length around a row of drafts; every sampling option; messages of 1 to 80 tokens."""
    rng = random.Random(count)
    made = []
    for number in range(count):
        length = rng.choice((1, 2, MOST + 1, 16, 17, 16 + MOST + 1, longest))
        prompt = tuple(rng.randrange(3, vocab_size) for _ in range(length))
        params = SamplingParams(**KINDS[number % len(KINDS)])
        most = rng.choice((1, 2, 3, 40, 80, 90))
        most = max(most, params.min_tokens)
        made.append(Request(f"r{number}", prompt, params, number * 7, most, eos_ids=(2,)))
    return made


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    end: tuple[str | None, int | None] = (None, None)

    def take(self, event: TokenEvent) -> None:
        self.tokens += event.tokens
        self.logprobs += event.logprobs
        self.prompt_logprobs += event.prompt_logprobs
        if event.finish_reason:
            assert event.error is None, event.error
            self.end = (event.finish_reason, event.stop_reason)

    def rounded(self) -> list[object]:
        """Float64 sums depend on the company in their last bits, which may be rounded away here."""
        return [(e.token, round(e.logprob, 8), [(t, round(p, 8)) for t, p in e.top])
                for e in (*self.logprobs, *self.prompt_logprobs)]


def build(checkpoint: Path, drafter: Drafter | None, **settings: object) -> EngineCore:
    config = EngineConfig(device="cpu", dtype="float64", context=200, **settings)  # type: ignore[arg-type]
    return build_engine(find_model(checkpoint, config), config, None, drafter).core


def answers(core: EngineCore, requests: list[Request], pause: int = 1) -> dict[str, Answer]:
    """Requests arrive one by one, `pause` steps apart."""
    found, waiting, steps = {request.id: Answer() for request in requests}, list(requests), 0
    while waiting or core.has_work:
        if waiting and steps % pause == 0:
            core.add(waiting.pop(0))
        for event in core.step():
            found[event.request].take(event)
        steps += 1
    stats = core.stats()
    assert stats.kv_pages_used == stats.slots_used == 0
    return found


def agree(found: dict[str, Answer], expected: dict[str, Answer]) -> None:
    for name, answer in expected.items():
        assert (name, found[name].tokens, found[name].end) == (name, answer.tokens, answer.end)
        assert found[name].rounded() == answer.rounded()


def outcomes(core: EngineCore) -> Counter[tuple[int, int]]:
    """Counts from now on how many drafts rows had, and how many of them were accepted."""
    scheduler: Any = core._scheduler
    commit, found = scheduler.commit, Counter[tuple[int, int]]()

    def counting(result: StepResult) -> list[TokenEvent]:
        for row, row_result, sequence in zip(scheduler._flight[0][0].rows, result.rows, scheduler._flight[0][1], strict=True):
            if row.samples and not sequence.done:
                found[len(row.drafts), len(row_result.tokens) - 1] += 1
        return commit(result)  # type: ignore[no-any-return]

    scheduler.commit = counting
    return found


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_drafts_change_no_token(checkpoint: Path, loop: str) -> None:
    requests = make_requests(64, 100)
    settings: dict[str, object] = {"max_seqs": 7, "chunk_tokens": 24, "page_tokens": 4}
    expected = answers(build(checkpoint, None, **settings), requests)
    assert {a.end[0] for a in expected.values()} == {"stop", "length"}
    drafter = ScriptedDrafter({name: a.tokens for name, a in expected.items()}, MOST, 100, chances=(0.5, 0.8, 0.9, 1.0))
    core = build(checkpoint, drafter, loop=loop, **settings)
    counts = outcomes(core)
    agree(answers(core, requests), expected)
    assert all(counts[drafts, accepted] for drafts in range(MOST + 1) for accepted in range(drafts + 1)), counts


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_fifteen_drafts_in_sixteen_rows_of_a_cache_too_small_for_them(hybrid: Path, loop: str) -> None:
    """Sequences lose their pages and are computed again, drafts are left out for want of pages."""
    requests = make_requests(32, 100, longest=100)
    settings: dict[str, object] = {"max_seqs": 16, "chunk_tokens": 37, "page_tokens": 8}
    expected = answers(build(hybrid, None, **settings), requests)
    drafter = ScriptedDrafter({name: a.tokens for name, a in expected.items()}, 15, 100, chances=(0.5, 1.0, 1.0))
    core = build(hybrid, drafter, loop=loop, cache_bytes=280_000, **settings)
    counts = outcomes(core)
    agree(answers(core, requests), expected)
    assert core.stats().preemptions_total > 0
    assert {drafts for drafts, _ in counts} == set(range(16)) and counts[15, 15] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_every_number_of_drafts_with_every_number_accepted(hybrid: Path, loop: str) -> None:
    """Each pair fifty times, in 1 to 16 rows, where nothing is drafted in between: prompts that begin alike, of which the
    prefix cache gives a part; last chunks of 1 to 16 tokens; a cache that is too small for all.
    """
    rng, chunk = random.Random(5), 33
    shared = [rng.randrange(3, 100) for _ in range(chunk)]
    distinct = [
        Request(f"r{n}", (*shared, *(rng.randrange(3, 100) for _ in range(1 + n % 16))), SamplingParams(temperature=0.0), n,
                rng.choice((60, 100, 120)))
        for n in range(24)
    ]
    requests = [replace(request, id=f"{request.id}.{turn}") for turn in range(60) for request in distinct]
    settings: dict[str, object] = {"max_seqs": 16, "chunk_tokens": chunk, "page_tokens": 8, "prefix_cache": "on"}
    expected = answers(build(hybrid, None, **settings), distinct)
    drafter = BalancedDrafter({name: a.tokens for name, a in expected.items()}, 15, 100)
    core = build(hybrid, drafter, loop=loop, cache_bytes=600_000, **settings)
    drafter.came = counts = outcomes(core)
    agree(answers(core, requests), {request.id: expected[request.id.partition(".")[0]] for request in requests})
    rare = {(k, n): counts[k, n] for k in range(16) for n in range(k + 1) if counts[k, n] < 50}
    assert not rare, rare
    stats = core.stats()
    assert stats.preemptions_total > 0 and stats.prefix_hits_total > 100


class Uncaptured(DraftGraph):
    """What a graph would replay, computed each time; the references want to know how long rows are."""

    def capture(self) -> None:
        """Nothing to do."""

    def _run(self, kind: str) -> None:
        if kind == "step":
            self._computed = self._compute()
        self._made[kind] = self._computed[:2] if kind == "step" else self._observe(*self._computed)

    def _draws(self, names: tuple[int, ...]) -> bool:
        return False

    def _row_tokens(self) -> tuple[int, ...]:
        return tuple(end - begin for begin, end in pairwise((*self._begins, self.tokens)))


class UncapturedProposal(ProposalGraph):
    """The same of what a drafter proposes."""

    def capture(self, memory: object) -> None:
        """Nothing to do."""

    def _run(self) -> None:
        self._compute()


def compute_what_is_captured(monkeypatch: pytest.MonkeyPatch, runner: Any, slots: int) -> None:
    monkeypatch.setattr(draft_graphs, "DraftGraph", Uncaptured)
    monkeypatch.setattr(draft_graphs, "ProposalGraph", UncapturedProposal)
    for module in (draft_graphs, forward_graphs):
        monkeypatch.setattr(module, "memory_counts", lambda: MemoryCounts(0, 0, 0))
    monkeypatch.setattr(draft_graphs, "_WARM_UPS", 1)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    runner._drafting.capture(row_buckets(slots), ())


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_steps_as_they_are_captured(checkpoint: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many numbers of rows, with any number of tokens in all, padding among them."""
    requests = make_requests(32, 100)
    settings: dict[str, object] = {"max_seqs": 11, "chunk_tokens": 64, "page_tokens": 4}
    expected = answers(build(checkpoint, None, **settings), requests)
    drafter = ScriptedDrafter({name: a.tokens for name, a in expected.items()}, 7, 100, chances=(0.5, 0.9, 1.0), pause=60)
    core = build(checkpoint, drafter, loop=loop, **settings)
    runner: Any = core._runner
    compute_what_is_captured(monkeypatch, runner, 11)
    used = replays(runner._drafting.graphs)
    agree(answers(core, requests), expected)
    assert len({rows for rows, _ in used}) >= 3 and {tokens // rows for rows, tokens in used} == {1, 2, 4, 8}


@pytest.mark.parametrize("params", [{"temperature": 0.0, "logprobs": 1}, {"temperature": 0.8, "top_k": 9, "logprobs": 0}])
def test_captured_steps_of_requests_that_all_want_log_probabilities(
    hybrid: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are drawn apart, from the hidden states of tokens of which the last ones are padding's."""
    requests = [replace(request, params=SamplingParams(**params)) for request in make_requests(6, 100)]
    settings: dict[str, object] = {"max_seqs": 11, "chunk_tokens": 64, "page_tokens": 4}
    expected = answers(build(hybrid, None, **settings), requests)
    drafter = ScriptedDrafter({name: a.tokens for name, a in expected.items()}, 7, 100, chances=(0.5, 0.9, 1.0))
    core = build(hybrid, drafter, **settings)
    compute_what_is_captured(monkeypatch, core._runner, 11)
    agree(answers(core, requests), expected)


def replays(graphs: Any) -> set[tuple[int, int]]:
    """The (rows, tokens) of graphs that are replayed from now on."""
    used, found = set(), graphs.graph_for

    def graph_for(rows: Any, *, deferred: bool) -> Any:
        graph = found(rows, deferred=deferred)
        if graph is not None:
            used.add((graph.size, graph.tokens))
        return graph

    graphs.graph_for = graph_for
    return used


def test_last_chunks_as_long_as_rows_with_drafts(hybrid: Path) -> None:
    """A prompt of a chunk and k + 1 tokens more, and then k drafts a row, for each k."""
    settings: dict[str, object] = {"max_seqs": 1, "chunk_tokens": 16, "page_tokens": 8}
    for drafts in range(16):
        request = Request("r", tuple(range(3, 20 + drafts)), SamplingParams(), drafts, 40)
        expected = answers(build(hybrid, None, **settings), [request])
        drafter = ScriptedDrafter({"r": expected["r"].tokens}, max(1, drafts), 100, chances=(0.5, 0.9))
        agree(answers(build(hybrid, drafter, **settings), [request]), expected)


@pytest.mark.parametrize("captured", [False, True])
def test_a_row_behind_a_messages_end_leaves_its_slot_as_it_was(
    hybrid: Path, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is reached by accepted drafts, so that only the device knows of it when the next row is launched."""
    request = Request("r", (5, 6, 7), SamplingParams(temperature=0), 1, 6)
    plain = answers(build(hybrid, None, max_seqs=2), [request])["r"].tokens
    core = build(hybrid, ScriptedDrafter({}, 7, 100), max_seqs=2, page_tokens=8)
    runner: Any = core._runner
    if captured:
        compute_what_is_captured(monkeypatch, runner, 2)
    pages = (PageUpdate(0, 0, (2, 0)),)
    rows = (Row(0, 1, 0, request.prompt, (), pages), Row(0, 1, 3, (), tuple(plain[1:])), Row(0, 1, 4, (), (9, 9)), Row(0, 1, 5))
    kept: list[list[torch.Tensor]] = []
    for step, row in enumerate(rows):
        (result,) = runner.launch(StepPlan(step, (Admission(0, 1, request),) if step == 0 else (), (row,))).result().rows
        assert step > 1 or list(result.tokens) == plain[step : 1 + step * 5]
        kept.append([x.clone() for x in of_slot(runner, 1, (2, 0))])
    assert int(runner._drafting.slots.positions[1]) == 8 and int(runner._drafting.slots.pending[1]) == 4
    assert all(torch.equal(a, b) for later in kept[2:] for a, b in zip(later, kept[1], strict=True))


def of_slot(runner: Any, slot: int, pages: tuple[int, ...]) -> list[torch.Tensor]:
    """All that is kept of a sequence."""
    pools, slots = runner._pools, runner._drafting.slots
    rings = [x for ring in pools.rings if ring is not None for x in (ring.keys, ring.deltas, ring.decays, ring.inputs)]
    by_slot = [*pools.states, *pools.conv_tails, *rings, *(getattr(slots, f.name) for f in fields(slots))]
    by_page = [pool[list(pages)] for pool in (*pools.keys, *pools.values) if pool is not None]
    return [*by_page, *(x[slot] for x in by_slot if x is not None)]


def test_rows_of_known_tokens_behind_accepted_drafts(hybrid: Path) -> None:
    """A plan may know more of a sequence than the last sampled token, and drafts may follow any number of known tokens.

    One sequence, teacher-forced by the greedy answer: rows of 1 to 40 tokens, right and wrong drafts behind them.
    """
    request = Request("r", (5, 6, 7), SamplingParams(temperature=0), 1, 150)
    plain = answers(build(hybrid, None, max_seqs=2), [request])["r"].tokens
    core = build(hybrid, ScriptedDrafter({}, 15, 100), max_seqs=2, page_tokens=8)
    runner: Any = core._runner
    text, rng, at, step = [*request.prompt, *plain], random.Random(2), 0, 0
    pages = (PageUpdate(0, 0, tuple(range(25))),)
    seen = set()
    while at < 140:
        known = tuple(text[at : at + rng.choice((1, 2, 9, 16, 17, 40))]) if at < 3 or rng.random() < 0.5 else ()
        sure = len(known) or 1
        if at + sure < 3:
            continue
        following = text[at + sure : at + sure + rng.randint(0, max(0, 16 - sure) if rng.random() < 0.8 else 0)]
        right = rng.randint(0, len(following))
        drafts = (*following[:right], *((t + 1) % 90 for t in following[right:]))
        admissions = (Admission(0, 1, request),) if step == 0 else ()
        row = Row(0, 1, at, known, drafts, pages if step == 0 else ())
        (result,) = runner.launch(StepPlan(step, admissions, (row,))).result().rows
        assert list(result.tokens) == text[at + sure : at + sure + right + 1]
        seen.add((min(sure, 17), right > 0))
        at, step = at + sure + right, step + 1
    assert {(17, False), (1, True), (1, False)} <= seen
