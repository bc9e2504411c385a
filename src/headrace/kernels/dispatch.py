"""Whether an operation's Triton kernel or its reference runs. Needs no Triton."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_KERNEL_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def runs_triton(x: Tensor) -> bool:
    """True for tensors on a CUDA device in a type that kernels compute in. float64 is always the reference's."""
    return x.is_cuda and x.dtype in _KERNEL_TYPES and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
