"""Facts of a CUDA device by which kernels choose their tiles. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from headrace.kernels.variant import SHARED_BYTES


@dataclass(frozen=True, slots=True)
class Card:
    """capability: 86 for compute capability 8.6. processors: streaming multiprocessors. shared_bytes: what a block may use."""

    capability: int
    processors: int
    shared_bytes: int


STAND_IN = Card(86, 8, SHARED_BYTES[86])
"""What Triton's interpreter runs kernels for: Ampere's form, and few processors, so that work is split into few parts."""


def card(device: torch.device) -> Card:
    """The device's facts. The first call on a CUDA device asks the driver; none waits for the device."""
    if device.type != "cuda":
        return STAND_IN
    return _card(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _card(index: int) -> Card:
    found = torch.cuda.get_device_properties(index)
    capability = 10 * found.major + found.minor
    return Card(capability, found.multi_processor_count, SHARED_BYTES.get(capability, min(SHARED_BYTES.values())))
