"""headrace: a serving engine for hybrid linear-attention language models.

`LLM` is the engine in this process; the command line serves it over HTTP. Importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.llm import LLM as LLM
    from headrace.types import Completion as Completion
    from headrace.types import SamplingParams as SamplingParams

_HOMES = {"LLM": "headrace.llm", "SamplingParams": "headrace.types", "Completion": "headrace.types"}

__all__ = ["LLM", "Completion", "SamplingParams"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
