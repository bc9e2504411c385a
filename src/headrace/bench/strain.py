"""Whether the client itself kept up: what it was late by is in every figure that it measured."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headrace.bench.summary import spread_ms

_INTERVAL_S = 0.01


class Strain:
    """Measures the event loop's lag and this process's CPU time, from `start` to `stop`."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._began_s, self._cpu_s = time.perf_counter(), time.process_time()
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            due_s = time.perf_counter() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            self._lags_s.append(time.perf_counter() - due_s)

    def stop(self) -> dict[str, Any]:
        """cpu_share: of one core."""
        if self._task is not None:
            self._task.cancel()
        elapsed_s = time.perf_counter() - self._began_s
        return {"cpu_share": (time.process_time() - self._cpu_s) / elapsed_s, "loop_lag_ms": spread_ms(self._lags_s)}
