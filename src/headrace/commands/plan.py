"""`headrace plan`: what a model would take of a card's memory, line by line, without a GPU and without PyTorch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from rich.console import Console

from headrace.commands.tensor_classes import tensor_classes
from headrace.config import EngineConfig, PlanConfig
from headrace.errors import ConfigError
from headrace.plan.checkpoint import Model, identify, open_checkpoint
from headrace.plan.named import NAMED, model_path
from headrace.plan.planner import Plan, Request, cards_for, make_plan
from headrace.plan.predict import Predicted
from headrace.plan.published import FORMATS, PLANNED_FORMATS, parameters, published_model
from headrace.plan.report import Report, as_json, make_report
from headrace.plan.shapes import SHAPES
from headrace.plan.suggest import Suggestion
from headrace.quantities import counted, exact_size, size


def plan(model: str, engine: EngineConfig, settings: PlanConfig, *, json_wanted: bool) -> bool:
    """Print the plan; returns whether it fits. Raises CheckpointError and ConfigError.

    With engine.verify_fit a plan that fits is tried on this machine.
    """
    format, models = find_models(model)
    cards = cache(lambda gpu: cards_for(replace(settings, gpu=gpu)))

    def remake(request: Request) -> Plan:
        return make_plan(request, cards(request.plan.gpu), models)

    planned = remake(Request(format, engine, settings))
    report = make_report(planned, remake)
    found = models(format)
    facts = {
        "model": model,
        "parameters": count_parameters(model, found),
        "stored_bytes": sum(tensor.nbytes for tensor in found.checkpoint.tensors.values()),
    }
    verified = _verified(model, planned, settings) if engine.verify_fit and report.fits else {}
    if json_wanted:
        json.dump({**facts, **as_json(report), **verified}, sys.stdout, indent=2)
        print()
    else:
        console = Console(highlight=False, soft_wrap=True, markup=False)
        _print(console, facts, report)
        for line in verified.get("verify_fit", ()):
            console.print(f"on this machine: {line}")
    return report.fits


def _verified(model: str, plan: Plan, settings: PlanConfig) -> dict[str, tuple[str, ...]]:
    from headrace.commands.verify_fit import verify_fit  # an engine's process is not what a plan needs otherwise

    try:
        return {"verify_fit": verify_fit(model, plan.drafting.asked_for(plan.request.engine), settings.users)}
    except ConfigError as error:  # the plan is of the cards that were named, which need not be here
        raise ConfigError(f"--verify-fit, on this machine: {error}") from error


def find_models(text: str) -> tuple[str | None, Callable[[str | None], Model]]:
    """(format, the model in any format) of a published name; of another or a path, format None and the one checkpoint there.

    Raises ConfigError and CheckpointError for a name or path that there is not.
    """
    name, colon, given = text.partition(":")
    if name in SHAPES:
        return given if colon else FORMATS[0], cache(lambda format: published_model(f"{name}:{format}"))
    if text not in NAMED and not Path(text).exists():
        raise ConfigError(f"{text} is no file or directory, and no model with a name: {', '.join((*NAMED, *SHAPES))}")
    checkpoint = identify(open_checkpoint(model_path(text)))
    return None, lambda format: checkpoint


def count_parameters(text: str, model: Model) -> int:
    """Numbers that the whole model has, however they are stored."""
    name = text.partition(":")[0]
    if name in SHAPES:
        return parameters(published_model(name))
    return sum(each.parameters for each in tensor_classes(model))


def _print(console: Console, facts: dict[str, object], report: Report) -> None:
    memory = "a card of any size" if report.vram_bytes is None else size(report.vram_bytes)
    console.print(f"{facts['model']}: {facts['parameters']:,} parameters, on {' + '.join(report.cards)} ({memory})")
    for line in report.lines:
        console.print(_line(line.name, line.bytes, line.why))
    console.print(_line("all", report.total_bytes, f"of it the engine's: {exact_size(report.engine_bytes)}"))
    for note in report.notes:
        console.print(note)
    console.print(
        f"a token: {exact_size(report.kv_bytes_per_token)} of keys and values; a sequence: "
        f"{exact_size(report.state_bytes_per_sequence)} of state; drafting: {exact_size(report.draft_bytes_per_token)} "
        f"a token, {exact_size(report.draft_bytes_per_sequence)} a sequence"
    )
    console.print(f"most that fits: {counted(report.max_context, 'token')} for {_users(report.max_context_users)}, "
                  f"{_users(report.max_users)} of {counted(report.context, 'token')}")
    if report.predicted:
        _print_predicted(console, report.predicted)
    console.print("fits" if report.fits else f"does not fit: {report.why}")
    if report.least:
        least = f"{_flags(report.least)}, {_room(report.least)}," if report.least.settings else _room(report.least)
        console.print(f"  nothing fits there: even {least} would take {_takes(report.least)}")
    for suggestion in report.suggestions:
        console.print(f"  would fit: {_flags(suggestion)}: {_room(suggestion)}, {_takes(suggestion)}")


def _line(name: str, count_bytes: int, why: str) -> str:
    return f"{name:<24} {count_bytes:>15,} {size(count_bytes):>9}  {why}".rstrip()


def _print_predicted(console: Console, predicted: Predicted) -> None:
    console.print("predicted, from bytes and bandwidth, not measured:")
    for row in predicted.decode:
        console.print(f"  decode, {row.users} x {counted(row.context, 'token')}: {row.tokens_per_s:,.0f} tokens/s, "
                      f"{row.tokens_per_s_each:,.1f} each")
    for each in predicted.prefill:
        console.print(f"  prefill, {counted(each.tokens, 'token')}: {each.tokens_per_s:,.0f} tokens/s, {each.seconds:.2f} s")


def _users(count: int | None) -> str:
    return "any number of users" if count is None else counted(count, "user")


def _room(suggestion: Suggestion) -> str:
    if suggestion.at_once:
        return f"{suggestion.users:,} x {counted(suggestion.context, 'token')} at once"
    if suggestion.users == 1:
        return f"one user of {counted(suggestion.context, 'token')}"
    shared = counted(suggestion.capacity_tokens, "token")
    return f"{suggestion.users:,} users share {shared}, at most {suggestion.context:,} each"


def _takes(suggestion: Suggestion) -> str:
    return exact_size(suggestion.total_bytes)


def _flags(suggestion: Suggestion) -> str:
    others = " ".join(_flag(name, value) for name, value in suggestion.settings.items() if name != "format")
    format = suggestion.settings.get("format")
    parts = f"the model in {format}{' (planned, not served yet)' * (format in PLANNED_FORMATS)}" if format else "", others
    return ", ".join(filter(None, parts))


def _flag(name: str, value: object) -> str:
    return f"(no --{name})" if value is None else f"--{name} {value}"
