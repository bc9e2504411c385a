"""The drafter that a checkpoint brings along: a folder of its directory."""

from __future__ import annotations

from pathlib import Path

from headrace.config import EngineConfig
from headrace.plan.checkpoint import Model

FOLDER = "drafter"


def drafter_folder(model: Model, config: EngineConfig) -> Path | None:
    """Of the drafter for --speculate dflash: --drafter, or else the checkpoint's own; None if there is neither."""
    if config.drafter:
        return Path(config.drafter)
    path = model.checkpoint.path
    in_a_directory = all(tensor.file.parent == path for tensor in model.checkpoint.tensors.values())  # on disk, and not GGUF
    own = path / FOLDER
    return own if in_a_directory and own.exists() else None
