"""Options of benchmarks that run an engine in their own process: the engine's settings, by its names and with its help."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from headrace.config import EngineConfig, setting

_ENGINE = {field.name: field for field in dataclasses.fields(EngineConfig)}


def engine_setting(name: str, help: str = "") -> Any:
    """The engine's field `name`, as a field of a benchmark's settings. help: instead of the engine's."""
    field = _ENGINE[name]
    changed = {**field.metadata, "engine": True} | ({"help": help} if help else {})
    return dataclasses.field(default=field.default, metadata=changed)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model, and how it runs. A benchmark's `Settings` add their own."""

    model: str | None = setting(
        None, "A Hugging Face directory, a GGUF file, or lab, the lab model; the demo model if not given.", metavar="MODEL"
    )
    random_weights: str | None = engine_setting("random_weights")
    device: str = engine_setting("device")
    dtype: str = engine_setting("dtype")
    loop: str = engine_setting("loop")
    graphs: str = engine_setting("graphs")

    def engine(self) -> dict[str, Any]:
        """What is given of the engine's settings: those that were made by `engine_setting`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.metadata.get("engine")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class EngineSettings(ModelSettings):
    """With one type of what is cached."""

    kv_dtype: str = engine_setting("kv_dtype")
    state_dtype: str = engine_setting("state_dtype")
