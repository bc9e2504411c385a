"""`headrace bench ...`: one subcommand for each module of `bench.scenarios`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.bench import record
from headrace.bench.scenarios import Scenario, names, scenario
from headrace.commands.options import Settings, with_settings
from headrace.config import from_settings

AsJson = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.", metavar="FILE")]


def bench_app() -> typer.Typer:
    """The command group; builds every subcommand's options."""
    app = typer.Typer(help="Measure, and keep the figures.", no_args_is_help=True, add_completion=False,
                      pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
    app.callback()(lambda: None)  # a group, even while there is one benchmark only
    for name in names():
        entry = scenario(name)
        help, *_ = inspect.cleandoc(entry.__doc__ or "").split("\n\n")
        app.command(name, help=help)(_command(name, entry))
    app.command()(plot)
    return app


def plot(
    records: Annotated[
        list[Path], typer.Argument(help="Files that `headrace bench serve|speculate --json` wrote.", metavar="FILE...")
    ],
    out: Annotated[Path, typer.Option(help="The picture; its ending says of which kind.", metavar="FILE")] = Path("bench.png"),
) -> None:
    """Draw what `headrace bench serve` measured, a curve for each file, or `headrace bench speculate`. Needs matplotlib."""
    from headrace.bench import plot, speculation_plot

    if sweeps := speculation_plot.read_sweeps(records):
        speculation_plot.draw(sweeps, out)
    else:
        plot.draw(plot.read_curves(records), out)


def _command(name: str, entry: Scenario) -> Callable[..., None]:
    @with_settings(entry.Settings)
    def command(as_json: AsJson = None, *, settings: Settings) -> None:
        chosen = from_settings(entry.Settings, dict(settings))
        results = entry.run(chosen, Console(highlight=False))
        if as_json:
            record.write(as_json, name, dataclasses.asdict(chosen), results)

    return command
