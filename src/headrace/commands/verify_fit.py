"""`headrace plan --verify-fit`: start the engine on this machine, with its cache filled, and tell what that took."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from rich.console import Console

from headrace.commands.loading import loading_progress
from headrace.config import EngineConfig
from headrace.engine.process import EngineProcess
from headrace.plan.named import model_path
from headrace.plan.shapes import SHAPES

_PREFIX = "verify-fit: "


def verify_fit(model: str, config: EngineConfig, users: int | None) -> tuple[str, ...]:
    """Lines about each part of the memory. A declared name has random weights. Raises ConfigError if it does not fit."""
    declared = model.partition(":")[0] in SHAPES
    config = replace(config, device="auto", verify_fit=True, max_seqs=users, random_weights=model if declared else None)
    return asyncio.run(_start("" if declared else str(model_path(model)), config))


async def _start(path: str, config: EngineConfig) -> tuple[str, ...]:
    with loading_progress(Console(file=sys.stderr)) as on_progress:
        process = await EngineProcess.start(path, config, max_queue=1, on_progress=on_progress)
    try:
        return tuple(note.removeprefix(_PREFIX) for note in process.info.notes if note.startswith(_PREFIX))
    finally:
        await process.close()
