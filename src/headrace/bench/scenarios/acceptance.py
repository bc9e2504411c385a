"""Measure how many of a drafter's drafts are accepted, by kind of text, while the model goes on with held-out texts.

--way mtp:4 is a drafter and the drafts of every row in every step, which no controller changes; it may be given several times.
A prompt is a conversation up to a turn of the assistant, or the beginning of another text. What is told is tokens a step, the
one behind the last accepted draft included, by each request's own counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from headrace.bench.engine_settings import EngineSettings, engine_setting
from headrace.bench.whole_table import whole_table
from headrace.config import EngineConfig, setting
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.text_engine import DecodedStep, TextEngine

DRAFTERS = ("lookup", "mtp", "dflash")
_WAYS = (*(f"mtp:{k}" for k in range(1, 5)), *(f"dflash:{k}" for k in range(1, 8)), "lookup:7", "lookup:15")


@dataclass(frozen=True, slots=True)
class Settings(EngineSettings):
    """Options of `headrace bench acceptance`."""

    text: tuple[str, ...] = setting((), "Held-out texts: files of JSON lines, or folders of held-out-*.jsonl.", metavar="PATH")
    way: tuple[str, ...] = setting(
        (), "A drafter and its drafts; mtp with 1 to 4, dflash with 1 to 7, and lookup with 7 and 15 if not given.",
        metavar="DRAFTER:N",
    )
    drafter: str | None = engine_setting("drafter")
    cache_bytes: int | None = engine_setting("cache_bytes")
    temperature: tuple[float, ...] = setting((), "Of the answers; 0 and 1 if not given.", metavar="T")
    seeded: bool = setting(False, "Requests with seeds, whose drafts are accepted while they are what is drawn anyway.")
    prompts: int = setting(64, "Most prompts of each kind of text.", metavar="N")
    prompt_tokens: int = setting(384, "Tokens of a prompt at most; longer ones are left out.", metavar="N")
    tokens: int = setting(192, "Tokens of an answer at most.", metavar="N")
    max_seqs: int = setting(64, "Answers at once.", metavar="N")
    out: str | None = setting(None, "Also write the list of figures alone to this file, as JSON.", metavar="FILE")


@dataclass(frozen=True, slots=True)
class Accepted:
    """Of one kind of text: decoding steps, and tokens that they yielded in the mean, with its standard error.

    drafted: the share of the steps that had drafts, which is less than 1 where lookup finds nothing; tokens_a_verification:
    of those steps alone.
    """

    drafter: str
    k: int
    kind: str
    temperature: float
    tokens_a_step: float
    steps: int
    error: float
    drafted: float
    tokens_a_verification: float


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. The results' `acceptance` has an entry for each way, temperature and kind of text."""
    ways = parse_ways(settings.way or _WAYS)
    if not settings.text:
        raise ConfigError("--text is needed: held-out texts to go on with")
    from headrace.bench.held_out import prompts, read_texts

    texts = read_texts(settings.text)
    found: list[Accepted] = []
    for drafter, counts in ways.items():
        context = settings.prompt_tokens + settings.tokens
        engine = engine_of(settings, drafter, max(counts), context, settings.max_seqs)
        try:
            console.print(f"{engine.info.model} on {engine.info.device}, {engine.info.dtype}, {drafter}")
            chosen = prompts(texts, engine.tokenizer, settings.prompts, settings.prompt_tokens)
            for k in counts:
                for temperature in settings.temperature or (0.0, 1.0):
                    found += _measure(engine, chosen, settings, drafter, k, temperature)
        finally:
            engine.close()
    console.print(_table(found))
    entries = [asdict(each) for each in found]
    if settings.out:
        Path(settings.out).write_text(json.dumps(entries, indent=1) + "\n")
    return {"seeded": settings.seeded, "acceptance": entries}


def parse_ways(ways: Iterable[str]) -> dict[str, list[int]]:
    """By drafter, in order. Raises ConfigError naming what is no way."""
    found: dict[str, list[int]] = {}
    for way in ways:
        drafter, _, drafts = way.partition(":")
        if drafter not in DRAFTERS or not drafts.isdecimal() or int(drafts) < 1:
            raise ConfigError(f"--way {way}: one of {', '.join(DRAFTERS)} and a number of drafts is wanted, such as mtp:4")
        found.setdefault(drafter, []).append(int(drafts))
    return found


def engine_of(settings: Any, drafter: str, drafts: int, context: int, rows: int) -> TextEngine:
    """For so many sequences of `context` tokens. drafter: "off" as well."""
    from headrace.bench.text_engine import TextEngine

    given = settings.engine() | {"speculate": drafter, "prefix_cache": "off", "context": context, "max_seqs": rows}
    given |= {"draft_tokens": drafts} if drafter != "off" else {}
    if drafter != "dflash":
        given.pop("drafter", None)
    return TextEngine(settings.model, EngineConfig(**given))


def _measure(
    engine: TextEngine, chosen: Sequence[Any], settings: Settings, drafter: str, k: int, temperature: float
) -> list[Accepted]:
    from headrace.types import SamplingParams

    params = SamplingParams(temperature=temperature, max_tokens=settings.tokens)
    requests = engine.requests(chosen, params, settings.seeded)
    by_kind: dict[str, list[DecodedStep]] = {}
    for step in engine.follow(requests, engine.fixed(k)):
        if not step.cut and step.drafts in (0, k):
            by_kind.setdefault(step.request.partition("/")[0], []).append(step)
    return [counted(steps, drafter, k, kind, temperature) for kind, steps in sorted(by_kind.items())]


def counted(steps: Sequence[DecodedStep], drafter: str, k: int, kind: str, temperature: float) -> Accepted:
    """steps: at least one."""
    import numpy as np

    tokens, drafted = np.array([step.tokens for step in steps]), np.array([step.drafts > 0 for step in steps])
    verified = tokens[drafted]
    return Accepted(
        drafter, k, kind, temperature, float(tokens.mean()), len(steps), float(tokens.std() / len(steps) ** 0.5),
        float(drafted.mean()), float(verified.mean()) if len(verified) else 1.0,
    )


def _table(found: Sequence[Accepted]) -> Table:
    columns = sorted({(each.temperature, each.kind) for each in found})
    cells = {(each.drafter, each.k, each.temperature, each.kind): each for each in found}
    table = whole_table("drafts", *(f"{kind}, T {temperature:g}" for temperature, kind in columns),
                        caption="tokens a step, the bonus included (of steps with drafts alone, where others had none)")
    for drafter, k in dict.fromkeys((each.drafter, each.k) for each in found):
        row = [cells.get((drafter, k, *column)) for column in columns]
        table.add_row(f"{drafter} {k}", *("-" if each is None else _cell(each) for each in row))
    return table


def _cell(each: Accepted) -> str:
    verified = "" if each.drafted == 1 else f" ({each.tokens_a_verification:.2f})"
    return f"{each.tokens_a_step:.2f}{verified}"
