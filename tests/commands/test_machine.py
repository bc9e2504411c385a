from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from headrace.commands import machine
from headrace.commands.machine import inspect_machine
from headrace.hardware import Gpu


@pytest.fixture(autouse=True)
def requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an installed headrace has them; tests also run where it is not installed."""
    lines = ["fastapi>=0.115", "torch<2.15,>=2.11", 'pytest>=8.3; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)


def test_this_machine_is_described() -> None:
    found = inspect_machine()
    assert found.cores >= 1
    assert found.memory_bytes > 1 << 28
    assert found.torch is not None
    assert found.torch.version == importlib.metadata.version("torch")
    assert found.torch.error is None
    assert found.packages == {"fastapi": importlib.metadata.version("fastapi")}


def test_a_machine_without_packages_or_with_a_broken_torch_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise OSError(f"lib{name}.so: cannot open\nshared object file")

    monkeypatch.setattr(machine.importlib, "import_module", broken)
    torch = inspect_machine().torch
    assert torch is not None
    assert torch.error == "libtorch.so: cannot open shared object file"

    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.importlib.metadata, "version", nothing)
    found = inspect_machine()
    assert found.torch is None
    assert found.packages == {"fastapi": None}


def test_gpus_are_read_from_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    rows = ("580.65, 8.6, 24576, NVIDIA GeForce RTX 3090", "580.65, 12.0, 32607, NVIDIA RTX, 5090")
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = inspect_machine()
    assert found.driver == "580.65"
    assert found.gpus == (
        Gpu("NVIDIA GeForce RTX 3090", (8, 6), 24576 << 20),
        Gpu("NVIDIA RTX, 5090", (12, 0), 32607 << 20),
    )
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert inspect_machine().gpus == ()
