"""Masks of allowed tokens through engines on a CPU: with drafts of any kind and in any loop the tokens are those that the
definition draws one by one, and the masks are obeyed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runner.test_drafts import Answer, agree, answers, compute_what_is_captured
from tests.support.scripted_drafter import ScriptedDrafter
from tests.support.scripted_masks import Allowed, Grammar, at_most, by_last, masks_of, packed
from tests.support.tiny import make_tiny_checkpoint

from headrace.config import EngineConfig
from headrace.engine.build import BuiltEngine, build_engine
from headrace.engine.core import EngineCore
from headrace.engine.model_source import find_model
from headrace.errors import ConfigError, RequestError
from headrace.kernels.sample import LOWEST_LOGPROB, SlotState, reference
from headrace.runner.allowed import AllowedTokens
from headrace.runner.followed import Words
from headrace.runner.sequence_masks import MakeMasks
from headrace.scheduler.drafter import Drafter
from headrace.speculate.pace import FixedPace
from headrace.types import Admission, Request, Row, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB, SMALL, MOST, EOS = 100, 16, 7, 2
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"top_k": 20, "top_p": 0.95},
    {"temperature": 0.7, "min_p": 0.05, "logprobs": 3},
    {"temperature": 1.3, "top_p": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 0},
    {"top_k": 5, "logit_bias": dict.fromkeys(range(40, 60), 100.0)},
    {},
)
GRAMMARS = (by_last(VOCAB, 0.1), by_last(VOCAB, 0.5, seed=1), at_most(9, frozenset(range(10, 20)), EOS))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hybrid") / "model"
    return make_tiny_checkpoint(made, "qwen3_5_text", seed=6, config={"vocab_size": VOCAB}, mtp=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("small") / "model"
    return make_tiny_checkpoint(made, "qwen3_5_text", seed=6, config={"vocab_size": SMALL})


def make_requests(count: int) -> list[Request]:
    """Of every length and way to draw. Seeds are set: so tokens do not depend on drafts."""
    rng = random.Random(count)
    made = []
    for number in range(count):
        length = rng.choice((1, 2, MOST + 1, 17, 40))
        prompt = tuple(rng.randrange(3, VOCAB) for _ in range(length))
        params = SamplingParams(seed=number, **KINDS[number % len(KINDS)])
        made.append(Request(f"r{number}", prompt, params, number, rng.choice((1, 3, 20, 40)), eos_ids=(EOS,)))
    return made


def grammars(requests: Sequence[Request]) -> dict[str, Any]:
    """By id; every fourth may draw everything."""
    return {each.id: GRAMMARS[n % len(GRAMMARS)] for n, each in enumerate(requests) if n % 4 != 3}


def build(path: Path, masks: MakeMasks | None, drafter: Drafter | None = None, **settings: Any) -> BuiltEngine:
    given = {"max_seqs": 5, "chunk_tokens": 24, "page_tokens": 4, "context": 128} | settings
    config = EngineConfig(device="cpu", dtype="float64", **given)
    pace = FixedPace(MOST, MOST) if config.speculate not in ("auto", "off") else None
    return build_engine(find_model(path, config), config, None, drafter, pace, masks)


def obeys(requests: Sequence[Request], found: dict[str, Answer]) -> None:
    for request in requests:
        following = grammars(requests).get(request.id)
        tokens = (*request.prompt[-1:], *found[request.id].tokens)
        if following is not None:
            assert all(token in following(tokens[:n]) for n, token in enumerate(tokens) if n)


@pytest.fixture(scope="module")
def plain(hybrid: Path) -> tuple[list[Request], dict[str, Answer]]:
    """Without drafts, in the plain loop."""
    requests = make_requests(42)
    found = answers(build(hybrid, masks_of(grammars(requests), VOCAB), speculate="off", loop="plain").core, requests)
    obeys(requests, found)
    assert {answer.end[0] for answer in found.values()} == {"stop", "length"}
    return requests, found


def test_masks_make_a_difference(hybrid: Path, plain: tuple[list[Request], dict[str, Answer]]) -> None:
    requests, masked = plain
    free = answers(build(hybrid, None, speculate="off").core, requests)
    unmasked = [each.id for each in requests if each.id not in grammars(requests)]
    assert unmasked and all(free[name].tokens == masked[name].tokens for name in unmasked)
    assert sum(free[each.id].tokens != masked[each.id].tokens for each in requests) > 20


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
@pytest.mark.parametrize("drafted", ["off", "lookup", "mtp", "scripted"])
def test_drafts_change_no_token(
    hybrid: Path, plain: tuple[list[Request], dict[str, Answer]], drafted: str, loop: str
) -> None:
    """0 to MOST drafts in a row, of which some are not allowed."""
    requests, expected = plain
    masks = masks_of(grammars(requests), VOCAB)
    if drafted == "scripted":
        known = {name: answer.tokens for name, answer in expected.items()}
        drafter = ScriptedDrafter(known, MOST, VOCAB, chances=(0.5, 0.8, 1.0))
        core = build(hybrid, masks, drafter, loop=loop).core
    else:
        more = {} if drafted == "off" else {"draft_tokens": MOST}
        core = build(hybrid, masks, speculate=drafted, loop=loop, **more).core
    found = answers(core, requests)
    agree(found, expected)
    stats = core.stats()
    assert drafted in ("off", "lookup") or 0 < sum(stats.accepted) < sum(stats.drafted)


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_steps_as_they_are_captured(
    hybrid: Path, plain: tuple[list[Request], dict[str, Answer]], loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, expected = plain
    built = build(hybrid, masks_of(grammars(requests), VOCAB), speculate="mtp", draft_tokens=MOST, loop=loop)
    compute_what_is_captured(monkeypatch, built.runner, 5)
    agree(answers(built.core, requests), expected)


def test_sequences_that_lose_their_pages_go_on_where_their_masks_were(
    hybrid: Path, plain: tuple[list[Request], dict[str, Answer]]
) -> None:
    requests, expected = plain
    known = {name: answer.tokens for name, answer in expected.items()}
    drafter = ScriptedDrafter(known, MOST, VOCAB, chances=(0.5, 1.0))
    settings: dict[str, Any] = {"max_seqs": 12, "cache_bytes": 215_000, "context": 88}
    core = build(hybrid, masks_of(grammars(requests), VOCAB), drafter, loop="overlapped", **settings).core
    agree(answers(core, requests), expected)
    assert core.stats().preemptions_total > 0


def following_logits(core: EngineCore, known: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """The model's own log-probabilities [SMALL] of what follows each of these, of an engine without masks."""
    params = SamplingParams(temperature=0, logprobs=SMALL)
    found = answers(core, [Request(f"{n}", tokens, params, seed=0, max_tokens=1) for n, tokens in enumerate(known)])
    tops = [dict(found[f"{n}"].logprobs[0].top) for n in range(len(known))]
    return [torch.tensor([top[token] for token in range(SMALL)], dtype=torch.float64) for top in tops]


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0.0), SamplingParams(seed=3), SamplingParams(seed=4, temperature=0.6, top_k=6),
    SamplingParams(seed=5, temperature=1.4, top_p=0.7), SamplingParams(seed=6, min_p=0.2),
], ids=str)
def test_tokens_are_those_of_the_definition(small: Path, params: SamplingParams) -> None:
    """Each drawn by itself, from the model's logits behind all tokens before it, with what is not allowed at -inf."""
    following, prompt = by_last(SMALL, 0.3, seed=2), (3, 9, 14, 1, 7)
    request = Request("r", prompt, replace(params, logprobs=4), params.seed or 0, 24)
    built = build(small, masks_of({"r": following}, SMALL), speculate="lookup", draft_tokens=MOST, loop="overlapped")
    answer = answers(built.core, [request])["r"]
    tokens = (*prompt, *answer.tokens)
    logits = following_logits(build(small, None).core, [tokens[:n] for n in range(len(prompt), len(tokens))])
    state = SlotState.allocate(1, SMALL, torch.device("cpu"))
    state.integers[0, :2] = torch.tensor([request.seed, params.top_k])
    state.numbers[0, :3] = torch.tensor([params.temperature, params.top_p, params.min_p], dtype=torch.float64)
    slot = torch.zeros(1, dtype=torch.int64)
    for n, (x, logprob) in enumerate(zip(logits, answer.logprobs, strict=True), len(prompt)):
        allowed = torch.zeros(SMALL, dtype=torch.bool)
        allowed[list(following(tokens[n - 1 : n]))] = True
        masked = x.masked_fill(~allowed, float("-inf"))
        assert tokens[n] == int(reference.sample(masked[None], state, slot, torch.tensor([n])))
        told = masked.log_softmax(0)
        assert logprob.logprob == pytest.approx(float(told[tokens[n]]), abs=1e-6)
        wanted = sorted(told[allowed].tolist(), reverse=True)[:4]
        wanted += [LOWEST_LOGPROB] * (4 - len(wanted))
        assert [value for _, value in logprob.top] == pytest.approx(wanted, abs=1e-6)
    assert any(a != b for a, b in pairwise(answer.tokens))


class Failing(Grammar):
    """Allows nothing behind three tokens."""

    def fill(self, drafts: Sequence[int], words: Words) -> int:
        count = super().fill(drafts, words)
        for place in range(max(0, 4 - len(self.tokens)), count):
            words[place] = packed((), self._vocab_size)
        return count


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
@pytest.mark.parametrize("speculate", ["off", "mtp"])
def test_a_mask_that_allows_nothing_ends_its_request_alone(hybrid: Path, speculate: str, loop: str) -> None:
    requests = [
        Request(f"r{n}", (5 + n, 9, 11), SamplingParams(temperature=0), n, 30, eos_ids=(EOS,)) for n in range(6)
    ]
    everything: Allowed = frozenset(range(3, VOCAB))
    others = answers(build(hybrid, None, speculate="off").core, requests)

    def make(request: Request) -> Grammar | None:
        if request.id in ("r1", "r4"):
            return Failing(request, lambda tokens: everything, VOCAB)
        if request.id == "r2":
            return Grammar(request, lambda tokens: everything if len(tokens) < 3 else frozenset((EOS,)), VOCAB)
        return None

    requests[2] = replace(requests[2], params=SamplingParams(temperature=0, min_tokens=8))
    more = {} if speculate == "off" else {"draft_tokens": MOST}
    core = build(hybrid, make, speculate=speculate, loop=loop, **more).core
    found: dict[str, list[int]] = {request.id: [] for request in requests}
    errors = {}
    for request in requests:
        core.add(request)
    while core.has_work:
        for event in core.step():
            found[event.request] += event.tokens
            if event.finish_reason == "error":
                errors[event.request] = event.error
    assert errors == {
        "r1": "the mask behind 3 generated tokens allows no token",
        "r2": "the mask behind 2 generated tokens allows no token but what ends the message, before min_tokens 8",
        "r4": "the mask behind 3 generated tokens allows no token",
    }
    told = [len(found[name]) for name in ("r1", "r2", "r4")]
    assert told == [3, 2, 3] if speculate == "off" else all(n <= most for n, most in zip(told, (3, 2, 3), strict=True))
    assert all(found[name] == others[name].tokens[: len(found[name])] for name in found)
    assert all(len(found[name]) == len(others[name].tokens) for name in ("r0", "r3", "r5"))
    stats = core.stats()
    assert stats.kv_pages_used == stats.slots_used == 0


@pytest.mark.parametrize("speculate", ["off", "lookup"])
def test_a_request_whose_masks_cannot_be_made_ends_alone(hybrid: Path, speculate: str) -> None:
    def make(request: Request) -> Grammar | None:
        if request.id == "r1":
            raise RequestError("no such grammar")
        return None

    more = {} if speculate == "off" else {"draft_tokens": MOST}
    core = build(hybrid, make, speculate=speculate, loop="overlapped", **more).core
    for n in range(3):
        core.add(Request(f"r{n}", tuple(range(3, 40 + n)), SamplingParams(temperature=0), n, 20))
    events = []
    while core.has_work:
        events += core.step()
    ends = {event.request: (event.finish_reason, event.error) for event in events if event.finish_reason}
    assert ends == {"r0": ("length", None), "r1": ("error", "no such grammar"), "r2": ("length", None)}
    assert not any(event.tokens for event in events if event.request == "r1")


@pytest.mark.parametrize("speculate", ["off", "lookup"])
def test_masks_are_a_line_of_the_budget_where_there_are_some(hybrid: Path, speculate: str) -> None:
    more = {} if speculate == "off" else {"draft_tokens": MOST}
    for masks in (None, masks_of({}, VOCAB)):
        built = build(hybrid, masks, speculate=speculate, **more)
        lines, held = dict(built.info.budget), built.runner.held_bytes()
        assert ("allowed tokens" in lines) == ("allowed tokens" in held) == (masks is not None)
        places = 1 if speculate == "off" else 1 + MOST
        slots = 5 + (speculate != "off")
        assert masks is None or lines["allowed tokens"] == held["allowed tokens"] == slots * (places * 16 + 8 * (1 + places))


class Drew:
    """A step, and what it drew."""

    def __init__(self, tokens: dict[int, tuple[int, ...]]) -> None:
        self._tokens = tokens

    def sampled(self) -> dict[int, tuple[int, ...]]:
        return self._tokens


def test_tokens_are_followed_behind_a_step_that_draws_nothing() -> None:
    """Of sequence 0, which finds no page and sits a step out, while a chunk of a prompt with masks is all that is computed."""
    made: dict[str, Grammar] = {}

    def make(request: Request) -> Grammar:
        return made.setdefault(request.id, Grammar(request, lambda tokens: frozenset((7, 8)), SMALL))

    allowed = AllowedTokens(make, 2, 1, SMALL, torch.device("cpu"))
    for slot in (0, 1):
        allowed.admit(Admission(slot, slot, Request(f"r{slot}", (3, 4), SamplingParams(), slot, 9)))
    allowed.expect([Row(0, 0, 1, (4,))])
    allowed.send()
    allowed.follow(Drew({0: (7,)}))
    allowed.expect([Row(1, 1, 0, (3,), samples=False)])
    allowed.follow(Drew({1: ()}))
    allowed.expect([Row(0, 0, 2)])
    allowed.send()
    assert made["r0"].tokens == (4, 7)
    assert allowed.masks.places[0, 0] == 3  # where its next token is drawn


def test_a_coin_would_accept_what_is_not_allowed() -> None:
    config = EngineConfig(
        device="cpu", random_weights="smollm2-135m", speculate="lookup", synthetic_acceptance=0.5, context=64, max_seqs=1
    )
    with pytest.raises(ConfigError, match="masks do not allow"):
        build_engine(find_model(None, config), config, None, make_masks=masks_of({}, VOCAB))
