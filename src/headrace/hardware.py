"""What the device is: the few facts that settings and budgets depend on, and what a report tells of a machine."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
from typing import Literal

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device. On a CPU the memory is the machine's RAM; free_bytes is what is unused right now. capability: of a GPU, 86 for
    compute capability 8.6. elsewhere: a card that is planned for, whatever is installed on this machine. processors: a GPU's
    streaming multiprocessors, 0 where nothing is known of them. uuid: by which the driver knows it. context_bytes: what the
    driver takes for the engine's process, out of free_bytes whether it has been taken already or not.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    memory_bytes: int
    free_bytes: int
    has_bfloat16: bool = True
    capability: int = 0
    elsewhere: bool = False
    processors: int = 0
    uuid: str = ""
    context_bytes: int = 0

    def with_context(self, context_bytes: int) -> Hardware:
        """A GPU that was looked at by a process that has its context already: free_bytes is what was free before."""
        if self.kind == "cpu":
            return self
        return replace(self, free_bytes=min(self.memory_bytes, self.free_bytes + context_bytes), context_bytes=context_bytes)


def detect(device: str) -> Hardware:
    """The device that setting `device` (auto, cpu or cuda) means here. Raises ConfigError when cuda is asked for and absent."""
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return _cpu()
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "no GPU is visible" if built else f"PyTorch {torch.__version__} is built without CUDA"
        raise ConfigError(f"device cuda: {why}; use --device cpu, or run `headrace doctor`")
    free, total = torch.cuda.mem_get_info()
    found = torch.cuda.get_device_properties()
    capability, processors = 10 * found.major + found.minor, found.multi_processor_count
    uuid = str(getattr(found, "uuid", ""))
    return Hardware("cuda", found.name, total, free, found.major >= 8, capability, processors=processors, uuid=uuid)


def _cpu() -> Hardware:
    total = ram_bytes()
    return Hardware("cpu", "CPU", total, min(total, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def ram_bytes() -> int:
    """Memory that this process may use: the machine's, or its container's share."""
    return _cgroup_limit_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _cgroup_limit_bytes(physical_bytes: int) -> int:
    """The container's memory limit where there is one below the physical memory."""
    try:
        with open("/sys/fs/cgroup/memory.max") as f:
            return min(physical_bytes, int(f.read()))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return physical_bytes


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU. compute_capability as (8, 6)."""

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int


def driver_and_gpus() -> tuple[str | None, tuple[Gpu, ...]]:
    """(driver version, GPUs), as the driver's own tool tells them; (None, ()) without one. Needs no PyTorch."""
    query = ["nvidia-smi", "--query-gpu=driver_version,compute_cap,memory.total,name", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None, ()
    rows = [line.split(", ", 3) for line in answer.splitlines() if line.count(", ") >= 3]
    gpus = tuple(Gpu(name, _capability(cc), int(mib) << 20) for _, cc, mib, name in rows)
    return (rows[0][0] if rows else None), gpus


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
