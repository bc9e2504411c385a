"""Measure decoding with drafts that a coin accepts: none, fixed numbers of them, and as many as the controller chooses.

Of a model with random weights nobody can propose what it says, so a seeded coin on the device accepts drafts with each
--acceptance; "mixed" is half of the sequences at 0 and half at 0.95. The drafter and the verification run as ever. Beside each
figure is what the measured times of steps make expect. --plot draws it all, for each drafter and number of users.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.bench.engine_settings import EngineSettings, engine_setting
from headrace.bench.expected_rate import expected
from headrace.bench.speculation_plot import MIXED, chances_of, costs_to_json, draw, sweeps_of
from headrace.config import EngineConfig, setting
from headrace.engine.model_source import find_model
from headrace.errors import ConfigError
from headrace.plan.checkpoint import Model

if TYPE_CHECKING:
    from headrace.bench.speculating import SpeculatingEngine

_LEARNING, _SETTLING = 100, 10
"""Steps before those that are timed: of the controller, and of fixed numbers."""
_LEAST_STEPS = 100
_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Settings(EngineSettings):
    """Options of `headrace bench speculate`."""

    speculate: tuple[str, ...] = setting(
        (), "What drafts: lookup, mtp, dflash, one engine after the other; lookup if not given.", metavar="DRAFTER"
    )
    draft_tokens: int | None = engine_setting("draft_tokens")
    users: tuple[int, ...] = setting((), "Sequences that decode; 1, 8, 32 and 64 if not given.", metavar="N")
    acceptance: tuple[str, ...] = setting((), "Chances of a draft, or mixed; 0, 0.6 and 0.95 if not given.", metavar="P")
    drafts: tuple[int, ...] = setting((), "Fixed numbers of drafts; 0, 3 and 7 if not given.", metavar="N")
    tokens: int = setting(
        600, "Rows that are timed in each measurement: so many steps of one sequence, and a hundred of many.", metavar="N"
    )
    plot: str | None = setting(None, "Draw the results to this file; needs matplotlib.", metavar="FILE")


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. The results' `sweeps` has an entry for each drafter, whose `runs` has one for each of users and
    acceptance.
    """
    loads = list(_loads(settings))
    if settings.random_weights is None:
        raise ConfigError("a coin accepts drafts only with --random-weights")
    model = find_model(settings.model, EngineConfig(**settings.engine()))
    sweeps = [_sweep(model, speculate, settings, loads, console) for speculate in settings.speculate or ("lookup",)]
    results = {"model": settings.random_weights, "sweeps": sweeps}
    if settings.plot is not None:
        draw(sweeps_of(results), Path(settings.plot))
    return results


def _sweep(
    model: Model, speculate: str, settings: Settings, loads: list[tuple[int, str]], console: Console
) -> dict[str, Any]:
    from headrace.bench.speculating import SpeculatingEngine

    longest = _CONTEXT + 8 * (_LEARNING + max(settings.tokens, _LEAST_STEPS))
    engine = SpeculatingEngine(model, EngineConfig(
        context=min(longest, model.spec.max_context), max_seqs=max(users for users, _ in loads), prefix_cache="off",
        synthetic_acceptance=0.0, **settings.engine() | {"speculate": speculate},
    ))
    try:
        for note in engine.built.info.notes:
            console.print(note)
        return {
            "speculate": speculate, "costs": costs_to_json(engine.costs),
            "runs": [_measure(engine, settings, users, chance, console) for users, chance in loads],
        }
    finally:
        engine.close()


def _loads(settings: Settings) -> Iterator[tuple[int, str]]:
    for drafter in settings.speculate:
        if drafter not in ("lookup", "mtp", "dflash"):
            raise ConfigError(f"--speculate must be lookup, mtp or dflash, not {drafter}")
    for users in settings.users or (1, 8, 32, 64):
        for chance in settings.acceptance or ("0", "0.6", "0.95"):
            if users < 1:
                raise ConfigError(f"--users must be 1 or more, not {users}")
            if chance != MIXED and not (chance.replace(".", "", 1).isdigit() and float(chance) <= 1):
                raise ConfigError(f"--acceptance must be from 0 to 1, or mixed, not {chance}")
            yield users, chance


def _measure(engine: SpeculatingEngine, settings: Settings, users: int, chance: str, console: Console) -> dict[str, Any]:
    chances, steps = chances_of(users, chance), max(_LEAST_STEPS, settings.tokens // users)
    found: dict[str, Any] = {"users": users, "acceptance": chance, "ways": []}
    for drafts in (*sorted({min(count, engine.most) for count in settings.drafts or (0, 3, 7)}), None):
        learning = _LEARNING if drafts is None else _SETTLING
        run = engine.measure(chances, drafts, _CONTEXT, learning, steps)
        simulated = expected(chances, drafts, engine.costs, engine.most, learning, steps)
        found["ways"].append({"fixed": drafts, **asdict(run), "expected_tokens_per_s": simulated})
        console.print(
            f"{users:3} users, {chance:>5} accepted, {'controller' if drafts is None else f'{drafts} drafts':>10}: "
            f"{run.tokens_per_s:7.0f} tokens/s, {run.tokens_per_s / simulated:.3f} of what is expected; "
            f"{run.drafts:.2f} drafts a row, {run.step_ms:.2f} ms a step"
        )
    best = max(way["tokens_per_s"] for way in found["ways"][:-1])
    found["share"] = found["ways"][-1]["tokens_per_s"] / best
    console.print(f"{users:3} users, {chance:>5} accepted: the controller has {found['share']:.3f} of the best fixed rate")
    return found
