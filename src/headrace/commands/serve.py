"""`headrace serve`: check the model from its headers, start its engine, answer HTTP.

PyTorch is imported by the engine's process only, so what is wrong with a model or a setting is told at once. Everything but
the line that says it is ready goes to stderr.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from headrace.commands.loading import loading_progress
from headrace.commands.tensor_classes import tensor_classes
from headrace.config import EngineConfig, ServerConfig
from headrace.engine.chat import ChatTemplate
from headrace.engine.log import log_to_stderr
from headrace.engine.model_source import find_model, find_tokenizer
from headrace.engine.process import EngineProcess
from headrace.engine.tokenizer import Tokenizer
from headrace.errors import CheckpointError, ConfigError
from headrace.plan.checkpoint import Model
from headrace.plan.engine_settings import check_settings
from headrace.quantities import size
from headrace.server.serve import Service, run
from headrace.types import EngineInfo


def serve(name: str | None, engine: EngineConfig, server: ServerConfig) -> int:
    """Serve until a signal; returns the exit code. Raises CheckpointError or ConfigError for what can never be served."""
    log_to_stderr()
    model = find_model(name, engine)
    check_settings(model.spec, engine)
    tokenizer = find_tokenizer(model, engine)
    template = chat_template(server, tokenizer)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)

    async def start() -> Service:
        tell_model(console, model, template)
        with loading_progress(console) as on_progress:
            process = await EngineProcess.start(
                str(model.checkpoint.path), engine, max_queue=server.max_queue, on_progress=on_progress
            )
        tell_engine(console, process.info)
        return Service(process, tokenizer, template)

    return run(start, server, announce=lambda line: print(line, flush=True))


def chat_template(server: ServerConfig, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The one of --chat-template, or the checkpoint's; None if there is neither. Raises ConfigError naming a file."""
    if server.chat_template is None:
        return ChatTemplate(tokenizer.chat_template, tokenizer) if tokenizer.chat_template else None
    try:
        source = Path(server.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {server.chat_template}: {error}") from None
    try:
        return ChatTemplate(source, tokenizer)
    except CheckpointError as error:
        raise ConfigError(f"--chat-template {server.chat_template}: {error}") from None


def tell_model(console: Console, model: Model, template: ChatTemplate | None) -> None:
    """Say what is served, and what of the checkpoint is not always."""
    console.print(f"model: {model.checkpoint.path}, {model.spec.model_type} of {len(model.spec.layers)} layers")
    for c in tensor_classes(model):
        if c.use != "served":
            console.print(f"{c.use}: {c.name}, {c.tensors} tensors of {size(c.bytes)}")
    if template is None:
        console.print("the model has no chat template: /v1/chat/completions needs one, see --chat-template")


def tell_engine(console: Console, info: EngineInfo) -> None:
    """Say how the settings were resolved, and where the memory goes."""
    for note in info.notes:
        console.print(note)
    lines = ", ".join(f"{name} {size(count_bytes)}" for name, count_bytes in info.budget)
    console.print(f"memory on {info.device}: {size(sum(count for _, count in info.budget))} ({lines})")
