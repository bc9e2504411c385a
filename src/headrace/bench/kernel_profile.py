"""Where a step's time goes on the device, kernel by kernel, as PyTorch's profiler sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Span = tuple[float, float, str]
"""Of one launch: (begin_us, duration_us, kernel)."""
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
_PAUSE_S = 0.3
"""Before and after what is measured: the profiler's clocks differ, even by tenths of a second, and what seems outside its time
is lost to it. Warm-ups and pauses are lost first."""


def profile_steps(step: Callable[[], None], steps: int) -> Profile:
    """Profile `steps` calls of `step` on the current CUDA device. Copies and fills count as kernels."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for count in (_WARM_UPS, steps):
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            time.sleep(_PAUSE_S)
    events: Any = profiler.profiler
    device = [e for e in events.kineto_results.events() if "CUDA" in str(e.device_type())]
    return summarise(behind_pause([(e.start_ns() / 1e3, e.duration_ns() / 1e3, e.name()) for e in device]), steps)


def behind_pause(spans: list[Span]) -> list[Span]:
    """Those after the longest gap, if it is a pause; the warm-ups before it may be lost as a whole."""
    spans = sorted(spans)
    gaps = [(later[0] - earlier[0] - earlier[1], index) for index, (earlier, later) in enumerate(pairwise(spans), 1)]
    longest, first = max(gaps, default=(0.0, 0))
    return spans[first:] if longest >= _PAUSE_S * 1e6 * 0.9 else spans


def summarise(spans: Iterable[Span], steps: int) -> Profile:
    """Of every launch in `steps` steps; kernels by falling time."""
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
