"""A benchmark's result as a JSON file: what was measured, on what machine, by which command. Imports no torch."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.hardware import driver_and_gpus, ram_bytes, usable_cores

FORMAT = 1
"""Rises when a reader of older files would misunderstand a newer one."""
MASK = "***"


def record(benchmark: str, settings: Mapping[str, Any], results: Any) -> dict[str, Any]:
    """What `write` writes: JSON values only. settings: what was asked for; results: what was measured, units in the names.

    An "api_key" among the settings is masked.
    """
    return {
        "format": FORMAT,
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(sys.argv),
        "headrace": {"version": _version("headrace"), "revision": git_revision(Path(__file__).parent)},
        "machine": machine(),
        "settings": {name: MASK if name == "api_key" and value else value for name, value in settings.items()},
        "results": results,
    }


def write(path: Path, benchmark: str, settings: Mapping[str, Any], results: Any) -> None:
    """Write the record to `path`. Raises ConfigError if that cannot be done."""
    text = json.dumps(record(benchmark, settings, results), indent=1, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}") from None


def machine() -> dict[str, Any]:
    """Facts that figures depend on, of the machine that this process runs on."""
    driver, gpus = driver_and_gpus()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "ram_bytes": ram_bytes(),
        "gpus": [asdict(gpu) for gpu in gpus],
        "driver": driver,
        "python": platform.python_version(),
        "torch": _version("torch"),
        "triton": _version("triton"),
    }


def command_line(arguments: Sequence[str]) -> str:
    """The command as it was given, API keys masked."""
    shown, masks = [Path(arguments[0]).name], False
    for argument in arguments[1:]:
        flag, given, _ = argument.partition("=")
        shown.append(MASK if masks else f"{flag}={MASK}" if given and flag == "--api-key" else argument)
        masks = argument == "--api-key"
    return " ".join(shown)


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As the system names the CPU; its architecture if it does not."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def git_revision(directory: Path) -> str | None:
    """The commit of the clone that headrace runs from, with "-dirty" if tracked files differ from it; None if it is no clone.

    A virtual environment inside somebody's repository is not a clone: the package's files have to be tracked there.
    """
    try:
        _git(directory, "ls-files", "--error-unmatch", "__init__.py")
        return _git(directory, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
