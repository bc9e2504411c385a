"""How steps are run: what `auto` means for the loop and for captured graphs on a device."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from headrace.config import Dtype, EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Execution:
    """depth: uncommitted plans that the loop holds at most. graphs: whether decode steps are captured. notes: a line each."""

    depth: int
    graphs: bool
    notes: tuple[str, ...] = ()


def resolve_execution(config: EngineConfig, hardware: Hardware, compute: Dtype) -> Execution:
    """compute: the type of the activations. Raises ConfigError for graphs that were asked for and cannot be captured."""
    gpu = hardware.kind == "cuda"
    graphs, why = _graphs(config, gpu, compute)
    if config.graphs == "on" and not graphs:
        raise ConfigError(f"--graphs on: {why}; use --graphs auto or off")
    overlapped = config.loop == "overlapped" or (config.loop == "auto" and gpu)
    notes = (f"loop: {'overlapped' if overlapped else 'plain'}", f"graphs: {'on' if graphs else 'off'}, {why}")
    return Execution(2 if overlapped else 1, graphs, notes)


def _graphs(config: EngineConfig, gpu: bool, compute: Dtype) -> tuple[bool, str]:
    if config.graphs == "off":
        return False, "as asked for"
    if not gpu:
        return False, "there is no CUDA device"
    if compute == "float64":
        return False, "float64 is computed by references, which wait for the device"
    if find_spec("triton") is None:
        return False, "Triton is not installed"
    return True, "decode steps are captured"
