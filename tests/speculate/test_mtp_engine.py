"""Drafts by the multi-token head through scheduler and runner: tokens are those without drafts, whatever else goes on; and what
is accepted behind a cached prefix is what is accepted in a cold run.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.support.compressed import Scheme, compress
from tests.support.tiny import make_tiny_checkpoint

from headrace.config import EngineConfig
from headrace.engine.build import BuiltEngine, build_engine
from headrace.engine.model_source import find_model
from headrace.errors import CheckpointError, ConfigError
from headrace.layers.linear import Linear
from headrace.plan import prefix_cache
from headrace.speculate.drafter import Asked, Proposal
from headrace.speculate.pace import FixedPace, Pace
from headrace.types import EngineStats, Request, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = 4
Tokens = dict[str, list[int]]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("hybrid") / "model", "qwen3_5_text", seed=6, mtp=True)


def engine(path: Path, drafts: int, pace: Pace | None = None, **settings: Any) -> BuiltEngine:
    """drafts: of every row, as many as it may have unless the pace says another; 0 for an engine without a drafter."""
    base = EngineConfig(
        device="cpu", dtype="float64", context=128, max_seqs=4, page_tokens=PAGE, chunk_tokens=20, loop="plain",
        prefix_cache="off",
    )
    speculation = {"speculate": "mtp", "draft_tokens": drafts} if drafts else {}
    config = replace(base, **{**speculation, **settings})
    every = FixedPace(drafts, drafts) if drafts else None
    return build_engine(find_model(path, config), config, None, pace=pace or every)


def generate(built: BuiltEngine, requests: Sequence[Request]) -> tuple[Tokens, dict[str, tuple[int, int, int]], EngineStats]:
    """Every request's tokens; and those that were cached, drafted and accepted."""
    core, found = built.core, defaultdict[str, list[int]](list)
    told: dict[str, tuple[int, int, int]] = {}
    for request in requests:
        core.add(request)
    while core.has_work:
        for event in core.step():
            assert event.error is None
            found[event.request] += event.tokens
            told[event.request] = (event.cached_tokens, event.drafted_tokens, event.accepted_tokens)
    return dict(found), told, core.stats()


def prompts(count: int, longest: int = 45) -> list[Request]:
    """Greedy ones and some that are drawn, of lengths around the chunks' and the pages'."""
    made = []
    for number in range(count):
        length = 1 + (17 * number + 3) % longest
        prompt = tuple((31 * number + 7 * at + at * at) % 280 + 3 for at in range(length))
        params = SamplingParams(temperature=0.9 if number % 3 == 2 else 0.0, seed=number)
        made.append(Request(f"r{number}", prompt, params, seed=number, max_tokens=20 + 5 * (number % 4)))
    return made


@pytest.mark.parametrize("drafts", range(1, 8))
def test_tokens_are_those_without_drafts(hybrid: Path, drafts: int) -> None:
    """Prompts in chunks, more requests than slots, plain and overlapped loops."""
    requests = prompts(7)
    expected, _, plain = generate(engine(hybrid, 0), requests)
    loop = "overlapped" if drafts % 2 else "plain"
    found, told, stats = generate(engine(hybrid, drafts, loop=loop), requests)
    assert found == expected and stats.generation_tokens_total == plain.generation_tokens_total
    assert sum(accepted for _, _, accepted in told.values()) == sum(stats.accepted)
    assert stats.drafted[0] > 60 and len(stats.drafted) == drafts and stats.drafted[-1] > 20


def test_preempted_and_stopped_requests_have_the_same_tokens(hybrid: Path) -> None:
    """Fewer pages than four sequences need, so that some are computed again; one ends by a token that drafts may run past."""
    requests = [replace(request, max_tokens=40, id=f"long {request.id}") for request in prompts(6)]
    expected, _, _ = generate(engine(hybrid, 0), requests)
    stop = expected[requests[0].id][9]
    requests[0] = replace(requests[0], params=replace(requests[0].params, stop_token_ids=(stop,)))
    expected, _, _ = generate(engine(hybrid, 0), requests)
    lines = dict(engine(hybrid, 3).info.budget)
    cache_bytes = lines["state slots"] + 45 * lines["kv pages 0"] // (4 * 128 // PAGE)
    for loop in ("plain", "overlapped"):
        found, _, stats = generate(engine(hybrid, 3, loop=loop, cache_bytes=cache_bytes), requests)
        assert found == expected and stats.preemptions_total > 0


class Recorded:
    """An engine, and what its head proposed: the input, and drafts as many as were asked for. proposals: of the last answer."""

    def __init__(self, built: BuiltEngine) -> None:
        self.built, self.proposals = built, dict[int, tuple[int, list[int]]]()
        self.by_request: dict[tuple[str, int], tuple[int, list[int]]] = {}
        assert built.runner._drafting is not None
        drafter = built.runner._drafting.proposer.drafter
        propose = drafter.propose  # type: ignore[union-attr]

        def recording(asked: Asked) -> Proposal:
            found = propose(asked)
            for row, (slot, count) in enumerate(zip(asked.slots.tolist(), asked.counts.tolist(), strict=True)):
                if slot < len(built.runner._requests):  # else padding
                    position, request = int(asked.positions[row]), built.runner._requests[slot]
                    made = int(asked.tokens[row]), found.tokens[row, :count].tolist()
                    self.proposals[position] = self.by_request[request.id if request else "", position] = made
            return found

        drafter.propose = recording  # type: ignore[method-assign, union-attr]

    def answer(self, request: Request) -> tuple[list[int], dict[int, tuple[int, list[int]]], int]:
        """Its tokens, the proposals, and the tokens that were cached."""
        self.proposals = {}
        tokens, told, _ = generate(self.built, [request])
        return tokens[request.id], self.proposals, told[request.id][0]


@pytest.mark.parametrize("tier", ["device", "host", "ssd"])
def test_proposals_behind_a_cached_prefix_are_those_of_a_cold_run(
    hybrid: Path, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two conversations, of which either goes on where its last answer ended, at every residue of a page. Host: there is room
    for one of them on the device. SSD: every turn in an engine of its own.
    """
    monkeypatch.setattr(prefix_cache, "MOST_BLOCK_PAGES", 1)
    settings: dict[str, Any] = {"context": 212, "max_seqs": 1, "chunk_tokens": 40}
    settings["gpu_checkpoint_bytes"] = 400_000 if tier == "device" else 60_000
    lines = dict(engine(hybrid, 3, prefix_cache="on", **settings).info.budget)
    room = sum(lines[name] for name in ("kv pages 0", "state slots", "gpu checkpoints"))
    settings_of: dict[str, dict[str, Any]] = {
        "device": {"cache_bytes": 8 * room}, "host": {"cache_bytes": room, "ram_cache_bytes": 4_000_000},
        "ssd": {"cache_bytes": room, "ssd_cache": str(tmp_path / "ssd")},
    }
    more = {"prefix_cache": "on", **settings, **settings_of[tier]}
    warm, cold = Recorded(engine(hybrid, 3, **more)), Recorded(engine(hybrid, 3, **settings))
    known: dict[str, list[int]] = {"a": [], "b": []}
    resumed = []
    for turn in range(10):
        name = "ab"[turn % 2]
        known[name] += [(37 * turn + 11 * at) % 270 + 5 for at in range(15 + turn % 7)]
        asked = Request(f"{turn}", tuple(known[name]), SamplingParams(temperature=0.0), turn, 18 + turn % 3)
        (tokens, found, cached), (expected, meant, _) = warm.answer(asked), cold.answer(asked)
        both = found.keys() & meant.keys()  # not where only one of them comes by: what is accepted earlier is skipped
        assert tokens == expected and len(both) >= 14
        assert {position: found[position] for position in both} == {position: meant[position] for position in both}
        known[name] += tokens
        resumed.append(cached)
        if tier == "ssd":
            warm.built.core.close()
            warm = Recorded(engine(hybrid, 3, **more))
    assert resumed[:2] == [0, 0] and {count % PAGE for count in resumed[2:]} == set(range(PAGE))
    assert (warm.built.core.stats().restores_total >= 2) == (tier == "host")


class Changing(FixedPace):
    """Another number of drafts for every row of every step, often none."""

    def __init__(self, most: int, seed: int) -> None:
        super().__init__(most, most)
        self._rng = random.Random(seed)

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        counts = tuple(self._rng.choice((0, 0, self._rng.randint(0, limit))) if limit else 0 for limit in limits)
        self.chosen = sum(counts)
        return counts


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_proposals_are_those_of_a_request_alone_whatever_goes_on(hybrid: Path, loop: str) -> None:
    """Requests that share prefixes, more than slots and pages for, with draft counts that change from step to step."""
    rng, stems, requests = random.Random(5), [[(13 * stem + 5 * at) % 280 + 3 for at in range(45)] for stem in range(3)], []
    for number in range(14):
        prompt = stems[number % 3][: rng.randint(20, 45)] + [rng.randrange(3, 290) for _ in range(rng.randint(1, 9))]
        params = SamplingParams(temperature=0.8 * (number % 4 == 3), seed=number)
        requests.append(Request(f"r{number}", tuple(prompt), params, seed=number, max_tokens=rng.randint(10, 40)))
    lines = dict(engine(hybrid, 4).info.budget)
    cache_bytes = lines["state slots"] + 60_000 + 44 * lines["kv pages 0"] // (4 * 128 // PAGE)
    small = {"loop": loop, "prefix_cache": "on", "cache_bytes": cache_bytes, "gpu_checkpoint_bytes": 60_000}
    crowded, lone = Recorded(engine(hybrid, 4, pace=Changing(4, 1), **small)), Recorded(engine(hybrid, 4))
    tokens, _, stats = generate(crowded.built, requests)
    compared = 0
    for request in requests:
        assert lone.answer(request)[0] == tokens[request.id]
        for (name, position), (newest, drafts) in crowded.by_request.items():
            if name == request.id and position in lone.proposals:
                assert newest == lone.proposals[position][0]
                shared = min(len(drafts), len(lone.proposals[position][1]))
                assert drafts[:shared] == lone.proposals[position][1][:shared], (name, position)
                compared += shared
    assert compared > 150 and stats.preemptions_total > 0 and stats.prefix_hits_total > 4


@pytest.mark.parametrize("drafts", [2, 5])
def test_drafts_among_the_first_tokens(hybrid: Path, drafts: int) -> None:
    requests = prompts(4)
    expected, _, _ = generate(engine(hybrid, 0), requests)
    whole, part = Recorded(engine(hybrid, drafts)), Recorded(engine(hybrid, drafts, draft_vocabulary=128))
    for request in requests:
        assert part.answer(request)[0] == whole.answer(request)[0] == expected[request.id]
        assert all(token < 128 for _, tokens in part.proposals.values() for token in tokens)
        firsts = [(whole.proposals[at][1][0], part.proposals[at][1][0]) for at in whole.proposals.keys() & part.proposals.keys()
                  if whole.proposals[at][1] and part.proposals[at][1]]
        assert len(firsts) > 9 and all(a == b for a, b in firsts if a < 128), "the best of all is the best of these"


@pytest.mark.parametrize(("settings", "message"), [
    ({"speculate": "mtp", "draft_vocabulary": 100}, "draft_vocabulary must be a multiple of 128 up to 302, not 100"),
    ({"speculate": "mtp", "draft_vocabulary": 512}, "draft_vocabulary must be a multiple of 128 up to 302, not 512"),
    ({"speculate": "lookup", "draft_vocabulary": 128}, "draft_vocabulary 128 is for --speculate mtp, not lookup"),
])
def test_what_cannot_be_drafted_from_is_named(hybrid: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine(hybrid, 0, **settings)


def test_tensors_that_do_not_fit_are_named_with_both_shapes(tmp_path: Path) -> None:
    path = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=6, mtp=True)
    tensors = load_file(path / "model.safetensors")
    narrow = {**tensors, "mtp.fc.weight": tensors["mtp.fc.weight"][:, :60].contiguous()}
    fewer = {name: tensor for name, tensor in tensors.items() if name != "mtp.layers.0.mlp.up_proj.weight"}
    more = {**tensors, "mtp.embed_tokens.weight": tensors["mtp.norm.weight"].clone()}
    none = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    for held, message in (
        (narrow, r"tensor mtp.fc.weight is \[32, 60\], the configuration makes it \[32, 64\]"),
        (fewer, "multi-token head of .*: tensor 'mtp.layers.0.mlp.up_proj.weight' is missing from the checkpoint"),
        (more, "multi-token head of .*: tensor 'mtp.embed_tokens.weight' in the checkpoint is none that this model has"),
        (none, "has no multi-token head"),
    ):
        save_file(held, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=message):
            engine(path, 3)
        generate(engine(path, 0), prompts(1))


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(8, 0, packed=False)], ids=["4 bits", "8 bits"])
def test_a_quantised_head_proposes_what_its_dequantised_weights_do(tmp_path: Path, scheme: Scheme) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "linear_value_head_dim": 16}
    packed, plain = (make_tiny_checkpoint(tmp_path / name, config=sizes, mtp=True) for name in ("packed", "plain"))
    meant = compress(packed, scheme, lambda name: "in_proj_a" not in name and "in_proj_b" not in name)
    save_file({name: tensor.double() for name, tensor in meant.items()}, plain / "model.safetensors", metadata={"format": "pt"})
    here, there = (Recorded(engine(path, 3)) for path in (packed, plain))
    assert here.built.runner._drafting is not None
    formats = {str(module.format) for module in here.built.runner._drafting.proposer.drafter._module.modules()  # type: ignore
               if isinstance(module, Linear)}
    assert any("LowBit" in format for format in formats)
    for request in prompts(3):
        assert here.answer(request) == there.answer(request)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_keys_and_values_of_8_bits_change_its_proposals_little(hybrid: Path, kv_dtype: str) -> None:
    requests, eight = prompts(4), {"kv_dtype": kv_dtype}
    expected, _, _ = generate(engine(hybrid, 0, **eight), requests)
    exact, rounded = Recorded(engine(hybrid, 3)), Recorded(engine(hybrid, 3, **eight))
    same = compared = 0
    for request in requests:
        assert rounded.answer(request)[0] == expected[request.id]
        exact.answer(request)
        both = [(exact.proposals[at], rounded.proposals[at]) for at in exact.proposals.keys() & rounded.proposals.keys()]
        firsts = [(drafts[:1], others[:1]) for (newest, drafts), (other, others) in both if newest == other]
        compared += len(firsts)
        same += sum(draft == other for draft, other in firsts)
    assert compared > 30 and same > 0.8 * compared, (same, compared)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_it_takes_what_the_budget_says(hybrid: Path, dtype: str) -> None:
    built = engine(hybrid, 3, dtype=dtype, prefix_cache="on", gpu_checkpoint_bytes=60_000)
    held, lines = built.runner.held_bytes(), dict(built.info.budget)
    assert held["weights"] == sum(size for name, size in lines.items() if name.startswith(("weights", "wide weights")))
    for name in ("kv pages 0", "state slots", "gpu checkpoints", "padding"):
        assert held[name] == lines[name], name
    without = dict(engine(hybrid, 0, dtype=dtype, prefix_cache="on", gpu_checkpoint_bytes=60_000).info.budget)
    assert "draft inputs" not in held and lines["weights mtp"] > 0 and lines["state slots"] > without["state slots"]
    assert lines["kv pages 0"] == 2 * without["kv pages 0"], "a layer beside one"


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_on_a_gpu_captured_or_not_tokens_are_those_without_drafts(tmp_path: Path) -> None:
    """And the head proposes what it does on a CPU."""
    sizes = {"hidden_size": 64, "head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
    path = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=7, mtp=True, config=sizes)
    requests, settings = prompts(6), {"device": "cuda", "dtype": "float32", "graphs": "off", "cache_bytes": 50_000_000}
    half = settings | {"dtype": "float16"}
    eager = generate(engine(path, 3, **half), requests)[0]
    for expected, more in (
        (generate(engine(path, 0, **settings), requests)[0], settings), (eager, half | {"graphs": "on"}),
        (eager, half | {"graphs": "on", "loop": "overlapped"}),
    ):
        found, _, stats = generate(engine(path, 3, **more), requests)
        assert sum(found[name] == tokens for name, tokens in expected.items()) >= len(expected) - 1
        assert stats.drafted[0] > 60
    here, there = Recorded(engine(path, 3)), Recorded(engine(path, 3, **settings))
    for request in requests[:2]:
        here.answer(request), there.answer(request)
        both = here.proposals.keys() & there.proposals.keys()
        same = sum(here.proposals[position] == there.proposals[position] for position in both)
        assert len(both) > 12 and same >= 0.9 * len(both), "in float32 a few near each other may change places"
