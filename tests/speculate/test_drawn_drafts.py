"""Requests without a seed, whose drafts are accepted by what they were drawn from: through engines with each drafter."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.runner.test_verify_distribution import fits
from tests.support.scripted_masks import Grammar, by_last
from tests.support.tiny import make_tiny_checkpoint
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace.config import EngineConfig
from headrace.engine.build import BuiltEngine, build_engine
from headrace.engine.model_source import find_model
from headrace.speculate.pace import FixedPace
from headrace.types import EngineStats, Request, SamplingParams, TokenLogprob

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY, MOST, REQUESTS, PROMPT = 16, 3, 1600, (3, 9, 14, 1, 7)
TEMPERATURE = 0.6
Found = dict[str, tuple[list[int], list[TokenLogprob]]]


@pytest.fixture(scope="module", params=["mtp", "dflash"])
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made, speculate = tmp_path_factory.mktemp("drawn"), request.param
    model = make_tiny_checkpoint(
        made / "model", "qwen3_5_text", seed=6, config={"vocab_size": VOCABULARY}, mtp=speculate == "mtp"
    )
    if speculate == "mtp":
        return {"model": model, "speculate": speculate}
    inner = {"block_size": 4, "selector_top_k": VOCABULARY, "target_layer_ids": [0, 2, 3], "mask_token_id": 0}
    config = dflash_config(VOCABULARY, sliding_window=32, inner=inner)
    drafter = write_dflash(made / "drafter", config, dflash_tensors(config, 4))
    return {"model": model, "speculate": speculate, "drafter": str(drafter)}


class MixedPace(FixedPace):
    """Any number of drafts in each row of each step, none among them."""

    def __init__(self) -> None:
        super().__init__(MOST, MOST)
        self._rng = random.Random(5)

    def choose(self, slots: Sequence[int], limits: Sequence[int], contexts: Sequence[int]) -> tuple[int, ...]:
        counts = tuple(self._rng.randint(0, limit) for limit in limits)
        self.chosen = sum(counts)
        return counts


FOLLOWING = by_last(VOCABULARY, 0.7)


def masks(request: Request) -> Grammar | None:
    """Of requests that are told so by their id."""
    return Grammar(request, FOLLOWING, VOCABULARY) if request.id.startswith("masked") else None


def engine(settings: dict[str, Any], loop: str = "plain", pace: FixedPace | None = None) -> BuiltEngine:
    config = EngineConfig(
        device="cpu", dtype="float64", context=64, max_seqs=16, page_tokens=4, chunk_tokens=96, loop=loop,  # type: ignore[arg-type]
        prefix_cache="off", **{name: value for name, value in settings.items() if name != "model"},
    )
    if config.speculate == "off":
        return build_engine(find_model(settings["model"], config), config, None)
    config = replace(config, draft_tokens=MOST)
    pace = pace or FixedPace(MOST, MOST)
    return build_engine(find_model(settings["model"], config), config, None, pace=pace, make_masks=masks)


def generate(built: BuiltEngine, requests: Sequence[Request]) -> tuple[Found, EngineStats]:
    found: Found = defaultdict(lambda: ([], []))
    for request in requests:
        built.core.add(request)
    while built.core.has_work:
        for event in built.core.step():
            assert event.error is None
            found[event.request][0].extend(event.tokens)
            found[event.request][1].extend(event.logprobs)
    return found, built.core.stats()


def following(built: BuiltEngine, known: list[tuple[int, ...]]) -> dict[tuple[int, ...], list[float]]:
    """The target's probabilities of what follows each of these, at TEMPERATURE."""
    params = SamplingParams(temperature=0, logprobs=VOCABULARY)
    asked = [Request(f"{tokens}", PROMPT + tokens, params, seed=0, max_tokens=1) for tokens in known]
    found, scores = generate(built, asked)[0], {}
    for tokens in known:
        (entry,) = found[f"{tokens}"][1]
        logprobs = torch.tensor([dict(entry.top)[token] for token in range(VOCABULARY)], dtype=torch.float64)
        scores[tokens] = (logprobs / TEMPERATURE).softmax(0).tolist()
    return scores


def allowed(known: tuple[int, ...], scores: list[float]) -> dict[int, float]:
    """Of probabilities of what follows those that masks allow."""
    left = {token: scores[token] for token in FOLLOWING((*PROMPT, *known))}
    return {token: p / sum(left.values()) for token, p in left.items()}


def joint(built: BuiltEngine, kind: str) -> dict[tuple[int, ...], float]:
    """Of three tokens behind PROMPT."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        scores = following(built, list(found))
        left = {known: allowed(known, p) if kind == "masked" else dict(enumerate(p)) for known, p in scores.items()}
        found = {(*known, token): chance * p for known, chance in found.items() for token, p in left[known].items()}
    return found


@pytest.mark.parametrize(("kind", "count", "least"), [("", REQUESTS, 0.1), ("masked", REQUESTS // 2, 0.02)])
def test_three_tokens_are_distributed_as_the_targets(settings: dict[str, Any], kind: str, count: int, least: float) -> None:
    """Overlapped, drafts in numbers that change, of which few are allowed where there are masks, since drafters know nothing of
    them; and the test notices tokens of another temperature. least: share of first drafts that is accepted.
    """
    built = engine(settings, "overlapped", MixedPace())
    params = SamplingParams(temperature=TEMPERATURE)
    found, stats = generate(built, [Request(f"{kind}{n}", PROMPT, params, seed=n, max_tokens=6) for n in range(count)])
    drawn, expected = Counter(tuple(tokens[:3]) for tokens, _ in found.values()), joint(built, kind)
    rate = stats.accepted[0] / stats.drafted[0]
    assert drawn.total() == count and stats.drafted[0] > count / 2 and least < rate < 0.9, rate
    assert fits(drawn, expected)
    warmer = {tokens: chance**0.6 for tokens, chance in expected.items()}
    assert not fits(drawn, {tokens: chance / sum(warmer.values()) for tokens, chance in warmer.items()})


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_tokens_repeat_and_only_those_that_are_free_depend_on_drafts(settings: dict[str, Any], loop: str) -> None:
    """Free, seeded and greedy requests in one batch, with a penalty or without."""
    requests = [
        Request(f"{n}", PROMPT + (n,), SamplingParams(
            temperature=0.0 if n % 3 == 0 else 1.0, seed=n if n % 3 == 1 else None, presence_penalty=0.5 * (n % 4 == 3),
        ), seed=n, max_tokens=24) for n in range(15)
    ]
    first, again = (generate(engine(settings, loop), requests)[0] for _ in range(2))
    plain = generate(engine({"model": settings["model"], "speculate": "off"}, loop), requests)[0]
    assert first == again
    same = {n: first[f"{n}"][0] == plain[f"{n}"][0] for n in range(15)}
    assert all(same[n] for n in range(15) if n % 3 != 2) and sum(same[n] for n in range(2, 15, 3)) <= 1, same


def test_free_requests_are_accepted_more_often(settings: dict[str, Any]) -> None:
    """sum min(p, q), where draws with the same noise agree at least (1 - TV) / (1 + TV) of the time."""
    rates = []
    for seeded in (False, True):
        params = [SamplingParams(temperature=TEMPERATURE, seed=n if seeded else None) for n in range(48)]
        _, stats = generate(engine(settings), [
            Request(f"{n}", PROMPT, each, seed=n, max_tokens=40) for n, each in enumerate(params)
        ])
        rates.append(stats.accepted[0] / stats.drafted[0])
    assert rates[0] > rates[1], rates
