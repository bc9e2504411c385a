"""A few rows in float32 on a CPU: oneDNN reads the weights as they lie, where PyTorch's matmul first repacks them.

At 8 rows that takes a half to two thirds of the time (AVX-512 Xeon); with 3 rows or fewer, and with many, matmul is as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor

FEWEST_ROWS, MOST_ROWS = 4, 16


# Whether this PyTorch was built with the operation.
_AVAILABLE = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def suits(x: Tensor) -> bool:
    return FEWEST_ROWS <= x.shape[0] <= MOST_ROWS and x.dtype == torch.float32 and x.device.type == "cpu" and _AVAILABLE


def linear(x: Tensor, weight: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return y
