"""Whether an operation's Triton kernel or its reference runs, and how kernels are launched. Needs no Triton."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from headrace.kernels.card import card
from headrace.kernels.variant import EARLY_CAPABILITY

_KERNEL_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def runs_triton(x: Tensor) -> bool:
    """True for tensors on a CUDA device in a type that kernels compute in. float64 is always the reference's."""
    return x.dtype in _KERNEL_TYPES and runs_triton_on(x.device)


def runs_triton_on(device: torch.device) -> bool:
    """The same where types decide nothing: of integers."""
    return device.type == "cuda" and _has_triton()


def early(device: torch.device) -> dict[str, bool]:
    """What a Triton kernel that waits (`tile.await_previous`) is launched with: EARLY and, where that is true, an option.

    On cards of compute capability 9.0 and later it then starts while the kernel before it still runs, in a captured graph
    too; its launch and whatever it does before its wait cost no time of their own.
    """
    if card(device).capability < EARLY_CAPABILITY:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
