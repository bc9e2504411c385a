"""What the server counts itself (GET /metrics): totals before and after a run, and how full it was meanwhile.

Names are those of headrace, or of vLLM and what imitates it; a server without them is measured all the same.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.exchange import ConnectError, DisconnectedError, Server, get

_TOTALS = {
    "prompt_tokens": ("headrace_prompt_tokens_total", "vllm:prompt_tokens_total"),
    "cached_tokens": ("headrace_cached_tokens_total", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
    "generation_tokens": ("headrace_generation_tokens_total", "vllm:generation_tokens_total"),
    "preemptions": ("headrace_preemptions_total", "vllm:num_preemptions_total"),
    "steps": ("headrace_steps_total",),
    "drafted_tokens": ("headrace_drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": ("headrace_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
}
_GAUGES = {
    "requests_running": ("headrace_requests_running", "vllm:num_requests_running"),
    "requests_waiting": ("headrace_requests_waiting", "vllm:num_requests_waiting"),
    "kv_used_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "kv_pages_used": ("headrace_kv_pages_used",),
    "kv_pages_total": ("headrace_kv_pages_total",),
}
_SAMPLE = re.compile(r"^([\w:]+)(?:\{.*\})? (\S+)", re.MULTILINE)


def parse(text: str) -> dict[str, float]:
    """Values by meaning, from Prometheus' text form. headrace's names win over others for the same thing.

    Values of one name (by position of a draft, by engine) are added up; shares are averaged.
    """
    values: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        values.setdefault(name, []).append(float(value))
    found: dict[str, float] = {}
    for meaning, names in (*_TOTALS.items(), *_GAUGES.items()):
        of_name = next((values[name] for name in names if name in values), None)
        if of_name:
            found[meaning] = sum(of_name) / (len(of_name) if meaning == "kv_used_share" else 1)
    pages, used = found.pop("kv_pages_total", 0.0), found.pop("kv_pages_used", 0.0)
    return {**found, "kv_used_share": used / pages} if pages else found


async def read(server: Server) -> dict[str, float] | None:
    """None if the server shows none, or cannot just now."""
    try:
        response, body = await get(server, "/metrics")
    except (ConnectError, DisconnectedError):
        return None
    return parse(body.decode(errors="replace")) or None if response.status == 200 else None


@dataclass(slots=True)
class Watch:
    """Reads a server's counters from `start` to `stop`, every `interval_s`."""

    server: Server
    interval_s: float
    _before: dict[str, float] | None = None
    _samples: list[dict[str, float]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._before = await read(self.server)
        if self._before is not None:
            self._task = asyncio.create_task(self._sample())

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            sample = await read(self.server)
            if sample is not None:
                self._samples.append(sample)

    async def stop(self) -> dict[str, Any] | None:
        """How much each total rose, and the mean and the maximum of each gauge over the samples; None without counters."""
        if self._task is None or self._before is None:
            return None
        self._task.cancel()
        await asyncio.wait((self._task,))
        after = await read(self.server)
        if after is None:
            return None
        rises = {name: after[name] - self._before[name] for name in _TOTALS if name in after and name in self._before}
        return {**rises, **self._gauges(), "samples": len(self._samples)}

    def _gauges(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for name in _GAUGES:
            values = [sample[name] for sample in self._samples if name in sample]
            if values:
                found[name] = {"mean": sum(values) / len(values), "max": max(values)}
        return found
