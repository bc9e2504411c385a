"""How steps are run: what `auto` means for the loop and for captured graphs on a device."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Execution:
    """depth: uncommitted plans that the loop holds at most. graphs: whether decode steps are captured. notes: a line each."""

    depth: int
    graphs: bool
    notes: tuple[str, ...] = ()


def resolve_execution(config: EngineConfig, hardware: Hardware) -> Execution:
    """Raises ConfigError for graphs without a GPU."""
    gpu = hardware.kind == "cuda"
    if config.graphs == "on" and not gpu:
        raise ConfigError("graphs on needs a CUDA device: use --graphs auto or off on a CPU")
    graphs = gpu and config.graphs != "off"
    overlapped = config.loop == "overlapped" or (config.loop == "auto" and gpu)
    notes = (f"loop: {'overlapped' if overlapped else 'plain'}", f"graphs: {'on' if graphs else 'off'}")
    return Execution(2 if overlapped else 1, graphs, notes)
