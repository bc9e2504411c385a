"""How steps are run: what `auto` means for the loop and for captured graphs on a device."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from headrace.config import Dtype, EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Execution:
    """depth: uncommitted plans that the loop holds at most. graphs: whether steps are captured. notes: a line each."""

    depth: int
    graphs: bool
    notes: tuple[str, ...] = ()


CHUNK_TOKENS = 1024
FAST_CHUNK_TOKENS = 2048
_FAST_CAPABILITIES = (90, 100, 103)


def chunk_tokens(config: EngineConfig, hardware: Hardware) -> int:
    """Tokens of a step that computes prompts, at most, but for those of decoding rows beyond half of it.

    On an H200 2048 give 7 % more prompt tokens a second than 1024 (the 27B shape; docs/decisions/0013-start.md), and steps of a
    fifth of a second, which others' tokens wait for. A card with a tenth of its rate takes a second for 1024.
    """
    if config.chunk_tokens is not None:
        return config.chunk_tokens
    return FAST_CHUNK_TOKENS if hardware.capability in _FAST_CAPABILITIES else CHUNK_TOKENS


def resolve_execution(config: EngineConfig, hardware: Hardware, compute: Dtype) -> Execution:
    """compute: the type of the activations. Raises ConfigError for graphs that were asked for and cannot be captured."""
    gpu = hardware.kind == "cuda"
    graphs, why = _graphs(config, hardware, compute)
    if config.graphs == "on" and not graphs:
        raise ConfigError(f"--graphs on: {why}; use --graphs auto or off")
    overlapped = config.loop == "overlapped" or (config.loop == "auto" and gpu)
    notes = (f"loop: {'overlapped' if overlapped else 'plain'}", f"graphs: {'on' if graphs else 'off'}, {why}")
    return Execution(2 if overlapped else 1, graphs, notes)


def _graphs(config: EngineConfig, hardware: Hardware, compute: Dtype) -> tuple[bool, str]:
    if config.graphs == "off":
        return False, "as asked for"
    if hardware.kind != "cuda":
        return False, "there is no CUDA device"
    if compute == "float64":
        return False, "float64 is computed by references, which wait for the device"
    if not hardware.elsewhere and find_spec("triton") is None:
        return False, "Triton is not installed"
    return True, "decode steps and short prompts are captured"
