"""A GPU that others use too: who they are is told, and they may be waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from headrace.errors import ConfigError
from headrace.gpu_processes import GpuProcess, Holders
from headrace.hardware import Hardware

LOOK_EVERY_S = 0.5
UNTOLD_SHARE = 0.05
"""Of a GPU's memory, what may be held without a word: about what the driver takes of the smallest."""
_log = logging.getLogger("headrace")
T = TypeVar("T")


def budget_beside_others(
    look: Callable[[], Hardware], make: Callable[[Hardware], T], holders: Holders, wait_s: float, *,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> tuple[Hardware, T]:
    """The device and what its budget is made of. look: the device as it is now; make: everything that depends on it.

    Where the budget would fit if nobody else held memory of the GPU, waits for that up to wait_s seconds. Raises ConfigError
    with the processes that hold the memory if it still does not fit then, and without at once if it never would.
    """
    deadline, told = clock() + wait_s, False
    while True:
        hardware = look()
        try:
            budget = make(hardware)
            if hardware.kind == "cuda" and hardware.free_bytes < (1 - UNTOLD_SHARE) * hardware.memory_bytes:
                _log.warning("the %s is shared: %s", hardware.name, held_by_others(hardware, holders()))
            return hardware, budget
        except ConfigError as error:
            if not _fits_alone(hardware, make):
                raise
            reason = f"{error}; {held_by_others(hardware, holders())}"
        if clock() >= deadline:
            raise ConfigError(f"{reason}; end them, or wait for them with --wait-for-gpu SECONDS") from None
        if not told:
            _log.warning("waiting up to %g s for the GPU: %s", wait_s, reason)
            told = True
        sleep(min(LOOK_EVERY_S, max(0.0, deadline - clock())))


def _fits_alone(hardware: Hardware, make: Callable[[Hardware], object]) -> bool:
    if hardware.kind != "cuda":
        return False
    try:
        make(replace(hardware, free_bytes=hardware.memory_bytes))
    except ConfigError:
        return False
    return True


def held_by_others(hardware: Hardware, processes: Sequence[GpuProcess]) -> str:
    """How much of the GPU is not free, and who has it."""
    held = hardware.memory_bytes - hardware.free_bytes
    names = ", ".join(str(each) for each in processes) or "by processes that the driver does not name, and the driver itself"
    return f"{held:,} of its {hardware.memory_bytes:,} bytes are held: {names}"
