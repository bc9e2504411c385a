"""Where a step's time goes on the device, kernel by kernel, as PyTorch's profiler sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Of one step: launches of a kernel, and microseconds in it."""

    name: str
    calls: float
    us: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Of `steps` steps. idle_share: of the time from the first kernel's begin to the last one's end, with none running."""

    kernels: tuple[KernelTime, ...]
    span_us: float
    idle_share: float


def profile_steps(step: Callable[[], None], steps: int) -> Profile:
    """Profile `steps` calls of `step` on the current CUDA device. Copies and fills count as kernels."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events: Any = profiler.profiler
    device = [e for e in events.kineto_results.events() if "CUDA" in str(e.device_type())]
    spans = [(e.start_ns() / 1e3, e.duration_ns() / 1e3, e.name()) for e in device]
    return summarise(spans, steps)


def summarise(spans: Iterable[tuple[float, float, str]], steps: int) -> Profile:
    """(begin_us, duration_us, kernel) of every launch in `steps` steps; kernels by falling time."""
    ordered = sorted(spans)
    by_name: dict[str, list[float]] = {}
    busy, end = 0.0, ordered[0][0] if ordered else 0.0
    for begin, duration, name in ordered:
        by_name.setdefault(name, []).append(duration)
        busy += max(0.0, begin + duration - max(begin, end))
        end = max(end, begin + duration)
    span = end - ordered[0][0] if ordered else 0.0
    kernels = sorted((KernelTime(n, len(d) / steps, sum(d) / steps) for n, d in by_name.items()), key=lambda k: -k.us)
    return Profile(tuple(kernels), span / steps, 1 - busy / span if span else 0.0)
