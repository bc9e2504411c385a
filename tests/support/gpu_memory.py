"""What a process has of a GPU's memory, as the driver counts it: NVML through ctypes, which needs nothing that is installed."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

import torch

_MOST_PROCESSES = 256
_UNTOLD = 2**64 - 1


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = [
        ("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("part", ctypes.c_uint),
    ]


class ProcessMemory:
    """Of the first GPU. Where the driver names this process, its own figure; in many containers it does not, and then what the
    device has more in use than when this was made: before the process used it, and while nobody else comes or goes.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", _uuid().encode(), ctypes.byref(self._device))
        self._before = self._device_bytes()
        self.source = "of the device, beyond what was in use before"

    def bytes(self) -> int:
        own = self._own_bytes()
        if own is None:
            return self._device_bytes() - self._before
        self.source = "of the process"
        return own

    def _device_bytes(self) -> int:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(memory))
        return int(memory.used)

    def _own_bytes(self) -> int | None:
        count, found = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        status = self._library.nvmlDeviceGetComputeRunningProcesses_v3(self._device, ctypes.byref(count), found)
        told = [] if status else found[: count.value]
        return next((int(each.used) for each in told if each.pid == os.getpid() and each.used != _UNTOLD), None)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: NVML's error {status}")


def _uuid() -> str:
    """The first GPU's, as CUDA numbers them, without beginning to use it."""
    driver, raw = ctypes.CDLL("libcuda.so.1"), (ctypes.c_ubyte * 16)()
    device = ctypes.c_int()
    for status in (driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0), driver.cuDeviceGetUuid_v2(raw, device)):
        if status:
            raise RuntimeError(f"CUDA driver: error {status}")
    text = bytes(raw).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@dataclass(frozen=True, slots=True)
class Held:
    """What PyTorch has taken: how often it asked the device, and the bytes that it keeps."""

    asked: int
    bytes: int

    @classmethod
    def now(cls) -> Held:
        torch.cuda.synchronize()
        return cls(torch.cuda.memory_stats()["num_device_alloc"], torch.cuda.memory_reserved())
