"""What this device reaches at most, measured: the rates that floors are made of."""

from __future__ import annotations

import time

import torch
from torch.nn.functional import linear

from headrace.plan.floor import Ceilings

_ROUNDS = 20


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Weights read by a product with one row, and a square product of random numbers, both by PyTorch; the best of 20."""
    gpu = device.type == "cuda"
    read = torch.randn(262_144 if gpu else 8192, 5120 if gpu else 2048, device=device, dtype=dtype)
    row = torch.randn(1, read.shape[1], device=device, dtype=dtype)
    read_s = min(_seconds(lambda: linear(row, read), device) for _ in range(_ROUNDS))
    size = 8192 if gpu else 512
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product_s = min(_seconds(lambda: a @ b, device) for _ in range(_ROUNDS))
    return Ceilings(read.numel() * read.element_size() / read_s, 2 * size**3 / product_s)


def _seconds(work: object, device: torch.device) -> float:
    assert callable(work)
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
