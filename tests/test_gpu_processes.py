"""Who holds a GPU's memory: by the library, by the tool, and where neither tells."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.gpu_processes import GpuProcess, gpu_processes

UUID = "11111111-2222-3333-4444-555555555555"


class NvmlError(Exception):
    pass


def library(computing: list[Any], drawing: list[Any], *, fails: bool = False) -> Any:
    """A pynvml with these processes; fails: as where the driver is not there."""

    def handle(uuid: str) -> str:
        if fails:
            raise NvmlError
        assert uuid == f"GPU-{UUID}"
        return "card"

    return SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetComputeRunningProcesses=lambda card: computing, nvmlDeviceGetGraphicsRunningProcesses=lambda card: drawing,
    )


def held(pid: int, count: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=count)


def tool(monkeypatch: pytest.MonkeyPatch, stdout: str) -> None:
    def run(command: list[str], **_: Any) -> Any:
        assert command[0] == "nvidia-smi"
        return SimpleNamespace(stdout=stdout)

    monkeypatch.setattr(subprocess, "run", run)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_the_library_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that draws and computes is told once; this process itself is not another."""
    me, other = os.getpid(), os.getppid()
    monkeypatch.setitem(sys.modules, "pynvml", library([held(me, 5), held(other, 7)], [held(other, 7), held(2**22 + 1, None)]))
    first, second = gpu_processes(UUID)
    assert (first.pid, first.memory_bytes) == (other, 7) and first.name not in ("", "unknown")
    assert second == GpuProcess(2**22 + 1, "unknown", None)


def test_the_tool_is_asked_where_the_library_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library([], [], fails=True))
    tool(monkeypatch, f"GPU-{UUID}, 42, 10, python, with a comma\n")
    assert gpu_processes(UUID) == (GpuProcess(42, "python, with a comma", 10 << 20),)


@pytest.mark.usefixtures("no_library")
def test_the_tools_lines_are_those_of_the_card_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (f"GPU-{UUID}, 42, 10, a", f"GPU-{UUID}, 43, 3000, b", "GPU-other, 44, 5, c", f"GPU-{UUID}, 45, [N/A], d", "", "No")
    tool(monkeypatch, "\n".join(lines))
    found = gpu_processes(f"GPU-{UUID}")
    assert [(each.pid, each.memory_bytes) for each in found] == [(43, 3000 << 20), (42, 10 << 20), (45, None)]
    assert [str(each) for each in found[1:]] == ["process 42 (a) 10,485,760 bytes", "process 45 (d) an unknown amount"]


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 30)])
def test_nobody_is_named_where_nothing_tells(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert gpu_processes(UUID) == ()
