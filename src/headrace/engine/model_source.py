"""Which model an engine is of: a checkpoint, the demo model, or a shape with random weights. Headers only, no torch."""

from __future__ import annotations

import os

from headrace.config import EngineConfig
from headrace.engine.byte_tokenizer import byte_tokenizer
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from headrace.errors import ConfigError
from headrace.plan.checkpoint import Model, identify, open_checkpoint
from headrace.plan.named import model_path
from headrace.plan.shapes import declared_model


def find_model(model: str | os.PathLike[str] | None, config: EngineConfig) -> Model:
    """The checkpoint of a name or at a path (`plan.named`); without one the shape of random_weights, or else the demo model.

    Raises CheckpointError, and ConfigError for a model together with random weights.
    """
    if not config.random_weights:
        return identify(open_checkpoint(model_path(model)))
    if model is not None:
        raise ConfigError(f"random weights exclude a model: give {os.fspath(model)} or random_weights {config.random_weights}")
    return declared_model(config.random_weights)


def find_tokenizer(model: Model, config: EngineConfig) -> Tokenizer:
    """The checkpoint's; random weights know no language, and get one token for each byte."""
    return byte_tokenizer() if config.random_weights else load_tokenizer(model.checkpoint.path)
