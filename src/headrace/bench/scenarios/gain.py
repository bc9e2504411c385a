"""Measure what drafts gain: tokens a second while users go on with held-out texts, by drafter and number of drafts.

Beside no drafts and fixed numbers of them is the controller, which chooses as many as pay, and its share of the best of those.
Steps in which all users decode are counted, from where all prompts are computed until an answer is full. All ways of a drafter,
none of its drafts among them, are one engine's and take turns with the same prompts; an engine without a drafter is measured by
itself. Answers go on behind the end of a message. Beside a step's time is what the device takes for such a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.bench.engine_settings import EngineSettings, engine_setting
from headrace.bench.scenarios.acceptance import engine_of, parse_ways
from headrace.config import setting
from headrace.errors import ConfigError
from headrace.quantities import counted

if TYPE_CHECKING:
    from headrace.bench.held_out import TextPrompt
    from headrace.bench.text_engine import TextEngine, Together

_WAYS = ("lookup:3", "lookup:7", "mtp:1", "mtp:2", "mtp:3", "mtp:4", "dflash:1", "dflash:3", "dflash:5", "dflash:7")
OFF = "off"


@dataclass(frozen=True, slots=True)
class Settings(EngineSettings):
    """Options of `headrace bench gain`."""

    text: tuple[str, ...] = setting((), "Held-out texts: files of JSON lines, or folders of held-out-*.jsonl.", metavar="PATH")
    kind: str = setting("chat", "Kind of text.", metavar="KIND")
    way: tuple[str, ...] = setting(
        (), "A drafter and its drafts, beside none and the controller; lookup with 3 and 7, mtp with 1 to 4, and dflash with "
        "1, 3, 5 and 7 if not given.", metavar="DRAFTER:N",
    )
    drafter: str | None = engine_setting("drafter")
    cache_bytes: int | None = engine_setting("cache_bytes")
    users: tuple[int, ...] = setting((), "Sequences that decode; 1, 8, 32 and 64 if not given.", metavar="N")
    temperature: float = setting(1.0, "Of the answers.", metavar="T")
    seeded: bool = setting(False, "Requests with seeds, the same for every way.")
    answers: int = setting(256, "Answers of each measurement, as many at once as there are users.", metavar="N")
    rounds: int = setting(12, "Most times that all users are given a prompt for it.", metavar="N")
    prompt_tokens: int = setting(256, "Tokens of a prompt at most; longer ones are left out.", metavar="N")
    tokens: int = setting(192, "Tokens of an answer.", metavar="N")
    plot: str | None = setting(None, "Also draw it to this file. Needs matplotlib.", metavar="FILE")


@dataclass(frozen=True, slots=True)
class Gain:
    """Of so many users with one drafter: k drafts of every row, or as many as the controller chooses where k is None.

    drafts, tokens_a_step: of a row in a step. device_ms: what the device alone takes for a step of k drafts and making them,
    as measured at start; None where there is no such measurement.
    """

    users: int
    drafter: str
    k: int | None
    tokens_per_s: float
    tokens_a_step: float
    drafts: float
    step_ms: float
    device_ms: float | None
    steps: int


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. `gains` has an entry for each way and number of users, `shares` the controllers'."""
    ways = {**parse_ways(settings.way or _WAYS), OFF: [0]}  # a drafter first: without costs there is nothing to compare
    users = settings.users or (1, 8, 32, 64)
    if min(users) < 1:
        raise ConfigError(f"--users must be 1 or more, not {min(users)}")
    if not settings.text:
        raise ConfigError("--text is needed: held-out texts to go on with")
    from headrace.bench.held_out import prompts, read_texts

    texts = [text for text in read_texts(settings.text) if text.kind == settings.kind]
    found: list[Gain] = []
    for drafter, counts in ways.items():
        engine = engine_of(settings, drafter, max(counts), settings.prompt_tokens + settings.tokens, max(users))
        try:
            console.print(f"{engine.info.model} on {engine.info.device}, {engine.info.dtype}, {drafter}")
            chosen = prompts(texts, engine.tokenizer, settings.answers, settings.prompt_tokens)
            if not chosen:
                raise ConfigError(f"{', '.join(settings.text)}: no text of the kind {settings.kind} that is short enough")
            for each in users:
                for gain in measure(engine, chosen, settings, each, drafter, counts if drafter == OFF else (0, *counts, None)):
                    found.append(gain)
                    console.print(_line(gain))
        finally:
            engine.close()
    found.sort(key=lambda gain: gain.drafter != OFF)
    shares = {drafter: {each: share(found, each, drafter) for each in users} for drafter in ways if drafter != OFF}
    for drafter, by_users in shares.items():
        told = ", ".join(f"{counted(each, 'user')} {of_best:.3f}" for each, of_best in by_users.items())
        console.print(f"{drafter}'s controller has of the best of 0 and the fixed numbers of drafts: {told}")
    if settings.plot:
        from headrace.bench.gain_plot import draw

        draw([asdict(gain) for gain in found], Path(settings.plot))
    return {"kind": settings.kind, "seeded": settings.seeded, "gains": [asdict(gain) for gain in found], "shares": shares}


def share(found: Iterable[Gain], users: int, drafter: str) -> float:
    """The controller's rate over the best with a fixed number of the drafter's drafts, 0 among them."""
    rates = {gain.k: gain.tokens_per_s for gain in found if (gain.users, gain.drafter) == (users, drafter)}
    return rates[None] / max(rate for k, rate in rates.items() if k is not None)


def measure(
    engine: TextEngine, chosen: Sequence[TextPrompt], settings: Settings, users: int, drafter: str, ways: Sequence[int | None]
) -> list[Gain]:
    """By the drafts of each way, None the controller's. The ways take turns, each round another one first, so that what
    disturbs the machine disturbs all.
    """
    from headrace.bench.text_engine import Together
    from headrace.types import SamplingParams

    params = SamplingParams(temperature=settings.temperature, max_tokens=settings.tokens, ignore_eos=True)
    if drafter != OFF:
        _ = engine.costs  # before the first request
    engine.settle()
    paces = {k: engine.controller() if k is None else engine.fixed(k) for k in ways}
    totals = dict.fromkeys(ways, Together())
    for number in range(-1, min(settings.rounds, -(-settings.answers // users))):  # the first is to learn from
        mine = [chosen[(max(0, number) * users + user) % len(chosen)] for user in range(users)]
        first = number % len(ways)
        for k in (*ways[first:], *ways[:first]):
            took = engine.together(engine.requests(mine, params, settings.seeded), paces[k])
            totals[k] += took if number >= 0 else Together()
    return [_gain(engine, users, drafter, k, total) for k, total in totals.items()]


def _gain(engine: TextEngine, users: int, drafter: str, k: int | None, total: Together) -> Gain:
    rows = total.steps * users
    device_s = engine.device_s(users, k) if k is not None and drafter != OFF else None
    return Gain(
        users, drafter, k, total.tokens / total.seconds, total.tokens / rows, total.drafts / rows,
        total.seconds / total.steps * 1e3, None if device_s is None else device_s * 1e3, total.steps,
    )


def _line(gain: Gain) -> str:
    way = gain.drafter if gain.drafter == OFF else f"{gain.drafter}, {'controller' if gain.k is None else gain.k}"
    device = "" if gain.device_ms is None else f", {gain.device_ms:.2f} of the device alone"
    return (
        f"{gain.users:3} users, {way:>18}: {gain.tokens_per_s:7.0f} tokens/s, {gain.tokens_a_step:.2f} tokens a step, "
        f"{gain.drafts:.2f} drafts a row, {gain.step_ms:.2f} ms a step{device}"
    )
