"""What benchmarks of drafters measure: work captured as a CUDA graph, and its kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def milliseconds(work: Callable[[], object], replays: int) -> float:
    """Of one replay: the median over `replays` groups of four."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    found = []
    for _ in range(replays):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / 4)
    return 1e3 * statistics.median(found)


def profile(name: str, work: Callable[[], object]) -> None:
    """Print the kernels that take longest."""
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    print(f"{name}: microseconds by kernel")
    for event in sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)[:16]:
        print(f"  {event.self_device_time_total:8.1f}  {event.count:3}  {event.key[:90]}")
