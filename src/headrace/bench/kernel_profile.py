"""Where a step's time goes on the device, kernel by kernel, as PyTorch's profiler sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_STEP_BEGINS = "Memcpy HtoD"


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Of one step: launches of a kernel, and microseconds in it."""

    name: str
    calls: float
    us: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Of a step. idle_share: of its time, with nothing running; between_share: those gaps that touch a step's first copy to the
    device, which is where one step ends and the next begins. The others lie between kernels of one step.
    """

    kernels: tuple[KernelTime, ...]
    span_us: float
    idle_share: float
    between_share: float


_WARM_UPS = 5
"""Steps that the profiler sees and that are left out: it misses launches in the first ones."""


def profile_steps(step: Callable[[], None], steps: int) -> Profile:
    """Profile `steps` calls of `step` on the current CUDA device. Copies and fills count as kernels."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_WARM_UPS):
            step()
        torch.cuda.synchronize()
        began_ns = time.time_ns()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events: Any = profiler.profiler
    device = [e for e in events.kineto_results.events() if "CUDA" in str(e.device_type()) and e.start_ns() >= began_ns]
    return summarise(((e.start_ns() / 1e3, e.duration_ns() / 1e3, e.name()) for e in device), steps)


def summarise(spans: Iterable[tuple[float, float, str]], steps: int) -> Profile:
    """(begin_us, duration_us, kernel) of every launch in `steps` steps; kernels by falling time."""
    ordered = sorted(spans)
    by_name: dict[str, list[float]] = {}
    idle, between, end = 0.0, 0.0, ordered[0][0] if ordered else 0.0
    touches = True
    for begin, duration, name in ordered:
        by_name.setdefault(name, []).append(duration)
        gap = max(0.0, begin - end)
        idle += gap
        between += gap if touches or name.startswith(_STEP_BEGINS) else 0.0
        touches = name.startswith(_STEP_BEGINS)
        end = max(end, begin + duration)
    span = end - ordered[0][0] if ordered else 0.0
    kernels = sorted((KernelTime(n, len(d) / steps, sum(d) / steps) for n, d in by_name.items()), key=lambda k: -k.us)
    return Profile(tuple(kernels), span / steps, *((idle / span, between / span) if span else (0.0, 0.0)))
