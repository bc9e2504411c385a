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
    """Of a step, in which some kernel runs for `busy_us`.

    idle_share: of the profiled time, with nothing running; between_share: those gaps that touch a step's first copy to the
    device, where one step ends and the next begins. Others lie between kernels of one step. The first profiled step has no
    step before it to hide the host behind, so that both are somewhat larger than in a long run. complete: every kernel
    was launched a whole number of times a step; otherwise the profiler lost some.
    """

    kernels: tuple[KernelTime, ...]
    busy_us: float
    idle_share: float
    between_share: float
    complete: bool


PROFILED_STEPS = 4
"""More are not all seen: with graphs of 840 kernels the profiler stopped after the seventh step, whatever its settings."""
_WARM_UPS = 2
_PAUSE_S = 0.3
"""Before and after what is measured, so that warm-ups can be told from it, and clocks that differ lose none of it."""


def profile_steps(step: Callable[[], None]) -> Profile:
    """Profile a few calls of `step` on the current CUDA device. Copies and fills count as kernels."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for count in (_WARM_UPS, PROFILED_STEPS):
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            time.sleep(_PAUSE_S)
    events: Any = profiler.profiler
    device = [e for e in events.kineto_results.events() if "CUDA" in str(e.device_type())]
    spans = behind_pause([(e.start_ns() / 1e3, e.duration_ns() / 1e3, e.name()) for e in device])
    return summarise(spans, PROFILED_STEPS)


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
    shares = (idle / span, between / span) if span else (0.0, 0.0)
    complete = all(len(durations) % steps == 0 for durations in by_name.values())
    return Profile(tuple(kernels), (span - idle) / steps, *shares, complete)
