"""Who holds a GPU's memory, as its driver tells: through nvidia-ml-py where that is installed, else its own tool."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_QUERY = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits"]
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """memory_bytes: None where the driver does not tell (Windows, some containers)."""

    pid: int
    name: str
    memory_bytes: int | None

    def __str__(self) -> str:
        held = "an unknown amount" if self.memory_bytes is None else f"{self.memory_bytes:,} bytes"
        return f"process {self.pid} ({self.name}) {held}"


Holders = Callable[[], Sequence[GpuProcess]]


def gpu_processes(uuid: str) -> tuple[GpuProcess, ...]:
    """Other processes with memory on the GPU, largest first; none where the driver cannot be asked."""
    uuid = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    found = _by_library(uuid)
    if found is None:
        found = _by_tool(uuid)
    others = {each.pid: each for each in found if each.pid != os.getpid()}
    return tuple(sorted(others.values(), key=lambda each: (-(each.memory_bytes or 0), each.pid)))


def _by_library(uuid: str) -> list[GpuProcess] | None:
    """None where nvidia-ml-py is missing or fails."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        try:
            card = nvml.nvmlDeviceGetHandleByUUID(uuid)
            drawing, computing = nvml.nvmlDeviceGetGraphicsRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses
            found = (*drawing(card), *computing(card))
            return [GpuProcess(each.pid, _name(each.pid), each.usedGpuMemory) for each in found]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None


def _by_tool(uuid: str) -> list[GpuProcess]:
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(", ", 3) for line in answer.splitlines() if line.count(", ") >= 3)
    return [GpuProcess(int(pid), name, _bytes(mib)) for found, pid, mib, name in rows if found == uuid and pid.isdecimal()]


def _bytes(mib: str) -> int | None:
    return int(mib) << 20 if mib.isdecimal() else None  # "[N/A]", "[Not Supported]"


def _name(pid: int) -> str:
    """A process's command, where the system tells it."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "unknown"
