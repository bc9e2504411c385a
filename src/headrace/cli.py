"""The `headrace` command. Subcommands import what they need when they run, so that `--help` and errors come at once."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated, Any

import typer

from headrace.commands.options import Settings, with_settings
from headrace.config import EngineConfig, PlanConfig, ServerConfig, from_settings
from headrace.errors import CheckpointError, ConfigError, HeadraceError

app = typer.Typer(
    name="headrace", help="Serve hybrid linear-attention language models.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line. Exits 2 for a model or setting that cannot work, 1 for any other failure that was foreseen."""
    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {' '.join(str(error).splitlines())}", file=sys.stderr)  # names of files may hold line ends
        sys.exit(2 if isinstance(error, CheckpointError | ConfigError) else 1)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {importlib.metadata.version('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
@with_settings(EngineConfig, ServerConfig)
def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="A Hugging Face directory, a GGUF file, or lab, the lab model; the demo model if not given."),
    ] = None,
    *,
    engine: Settings,
    server: Settings,
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it."""
    from headrace.commands.serve import serve as run

    raise typer.Exit(run(model, from_settings(EngineConfig, dict(engine)), from_settings(ServerConfig, dict(server))))


@app.command()
@with_settings(EngineConfig, PlanConfig, omit=("device", "max_seqs", "random_weights"))
def plan(
    model: Annotated[
        str, typer.Argument(help="A Hugging Face directory, a GGUF file, lab, the lab model, or a declared one: "
                                 "qwen3.8-27b, qwen3.8-27b:w4a16|nvfp4|fp8, smollm2-135m.", metavar="MODEL|NAME[:FORMAT]")
    ],
    as_json: AsJson = False,
    *,
    engine: Settings,
    settings: Settings,
) -> None:
    """Tell what a model takes of a card's memory and what fits. Exits 1 if it does not fit."""
    from headrace.commands.plan import plan as run

    chosen = from_settings(EngineConfig, {"device": "cuda", **engine})
    if not run(model, chosen, from_settings(PlanConfig, dict(settings)), json_wanted=as_json):
        raise typer.Exit(1)


@app.command()
def info(
    model: Annotated[str, typer.Argument(help="A Hugging Face directory, a GGUF file, or lab, the lab model.")],
    as_json: AsJson = False,
) -> None:
    """Tell what a checkpoint holds, tensor class by tensor class, and what serving it takes."""
    from headrace.commands.info import report

    report(model, as_json=as_json)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Tell what this machine can do, and how to get what is missing. Exits 1 if it cannot serve."""
    from headrace.commands.doctor import report
    from headrace.commands.machine import inspect_machine

    if not report(inspect_machine(), as_json=as_json):
        raise typer.Exit(1)


@app.command()
def chat(
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(help="The key that the server wants.", metavar="K")] = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.", metavar="T")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this share.", metavar="P")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.", metavar="N")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.", metavar="N")] = None,
) -> None:
    """Chat with a running server: a line is a message, /reset starts over, Ctrl-C stops an answer, Ctrl-D leaves."""
    from headrace.commands.chat import chat as run
    from headrace.commands.chat_client import ChatClient

    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
    sampling: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    run(ChatClient(url, api_key), system=system, sampling=sampling)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure a running server, or the engine's steps; `headrace bench --help` lists the benchmarks."""
    from headrace.commands.bench import bench_app

    bench_app()(context.args, prog_name="headrace bench")
