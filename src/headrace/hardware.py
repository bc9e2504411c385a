"""What the device is: the few facts that settings and budgets depend on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device. On a CPU the memory is the machine's RAM; free_bytes is what is unused right now."""

    kind: Literal["cpu", "cuda"]
    name: str
    memory_bytes: int
    free_bytes: int
    has_bfloat16: bool = True


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
    return Hardware("cuda", torch.cuda.get_device_name(), total, free, torch.cuda.get_device_capability() >= (8, 0))


def _cpu() -> Hardware:
    page = os.sysconf("SC_PAGE_SIZE")
    total = _cgroup_limit_bytes(os.sysconf("SC_PHYS_PAGES") * page)
    return Hardware("cpu", "CPU", total, min(total, os.sysconf("SC_AVPHYS_PAGES") * page))


def _cgroup_limit_bytes(physical_bytes: int) -> int:
    """The container's memory limit where there is one below the physical memory."""
    try:
        with open("/sys/fs/cgroup/memory.max") as f:
            return min(physical_bytes, int(f.read()))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return physical_bytes
