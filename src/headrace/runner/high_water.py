"""The most memory that was taken meanwhile: of a GPU as PyTorch counts it, of a CPU's process as the system does."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import torch

_STATUS = Path("/proc/self/status")
_ANONYMOUS = "RssAnon:"
_EVERY_S = 0.001


def taken_bytes(device: torch.device) -> int:
    """What is taken now; 0 on a system that does not tell. Of a CPU the process's own pages, without files that it reads."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(_ANONYMOUS)), 0)


class HighWater:
    """A context; afterwards `bytes` is the most that was taken within it beyond what was taken before.

    A CPU's process is looked at every millisecond from another thread, since nothing else counts what operations take inside.
    """

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        self._device = device
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="high-water", daemon=True)

    def __enter__(self) -> HighWater:
        self._before = taken_bytes(self._device)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
        else:
            self._over.set()
            self._watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.bytes = max(self.bytes, taken_bytes(self._device) - self._before)
