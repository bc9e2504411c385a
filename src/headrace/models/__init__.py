"""Models: one torch-free declaration each (configuration -> spec, tensor names -> weight map), and the decoder they build."""

from __future__ import annotations

from types import ModuleType

from headrace.errors import CheckpointError
from headrace.registry import Registry

MODELS = Registry("headrace.models", skip=("spec", "decoder", "fields", "mapping"))


def declaration_for(model_type: object) -> ModuleType:
    """The declaration that serves a config.json's `model_type`. Raises CheckpointError when none does."""
    known = []
    for name in MODELS:
        declaration = MODELS[name]
        if model_type in declaration.MODEL_TYPES:
            return declaration
        known += declaration.MODEL_TYPES
    problem = "is missing" if model_type is None else f"is {model_type!r}, which headrace does not know"
    raise CheckpointError(f"config field 'model_type' {problem}; it serves {', '.join(sorted(known))}")
