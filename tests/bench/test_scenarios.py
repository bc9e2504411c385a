"""Every benchmark keeps the contract of `bench.scenarios`, and the command line offers it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace.bench import scenarios
from headrace.commands import bench
from headrace.config import EngineConfig, setting

NAMES = scenarios.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_keeps_the_contract(name: str) -> None:
    entry = scenarios.scenario(name)
    assert entry.__doc__ and list(inspect.signature(entry.run).parameters) == ["settings", "console"]
    assert all(field.metadata["help"] for field in dataclasses.fields(entry.Settings))
    shown = CliRunner().invoke(bench.bench_app(), [name, "--help"])
    assert shown.exit_code == 0 and "--json" in shown.output


@pytest.mark.parametrize("name", ["acceptance", "gain", "generate", "prefix", "speculate", "step"])
def test_what_the_engine_is_told_is_what_was_given(name: str) -> None:
    """By its own names, which its own settings describe; nothing else of a benchmark's settings."""
    entry = scenarios.scenario(name)
    own = {field.name: field for field in dataclasses.fields(EngineConfig)}
    told = entry.Settings(random_weights="smollm2-135m", kv_dtype="int8").engine()
    assert told.pop("random_weights") == "smollm2-135m" and told.pop("kv_dtype") == "int8"
    assert told and all(own[field].default == value for field, value in told.items())
    fields = [field for field in dataclasses.fields(entry.Settings) if field.metadata.get("engine")]
    assert {"device", "dtype", "loop", "graphs"} < {field.name for field in fields} < own.keys()
    assert all(field.metadata["choices"] == own[field.name].metadata["choices"] for field in fields)


def test_importing_them_imports_no_torch() -> None:
    imports = ", ".join(f"headrace.bench.scenarios.{name}" for name in ("__init__", *NAMES))
    script = f"import sys, {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


@dataclasses.dataclass(frozen=True)
class Settings:
    users: int = setting(1, "How many.", metavar="N")
    kind: str = setting("a", "Which.", choices=("a", "b"))


def test_settings_become_options_and_results_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: Settings, console: Console) -> dict[str, Any]:
        console.print("measured")
        return {"twice": settings.users * 2}

    entry = SimpleNamespace(__doc__="Counts twice.\n\nMore about it.", Settings=Settings, run=run)
    monkeypatch.setattr(bench, "names", lambda: ("twice",))
    monkeypatch.setattr(bench, "scenario", lambda name: entry)
    app = bench.bench_app()
    assert "Counts twice." in CliRunner().invoke(app, ["--help"]).output
    file = tmp_path / "result.json"
    ended = CliRunner().invoke(app, ["twice", "--users", "3", "--json", str(file)])
    assert ended.exit_code == 0 and ended.output == "measured\n"
    found = json.loads(file.read_text())
    assert (found["benchmark"], found["settings"], found["results"]) == ("twice", {"users": 3, "kind": "a"}, {"twice": 6})
    refused = CliRunner().invoke(app, ["twice", "--kind", "c"])
    assert "kind must be one of a, b" in str(refused.exception)
