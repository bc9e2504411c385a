from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.bench import record
from headrace.errors import ConfigError
from headrace.hardware import Gpu


def test_a_record_says_what_was_measured_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/headrace", "bench", "serve", "--users", "4"])
    monkeypatch.setattr(record, "driver_and_gpus", lambda: ("580.65", (Gpu("RTX 3090", (8, 6), 24 << 30),)))
    file = tmp_path / "new" / "result.json"
    record.write(file, "serve", {"users": 4}, {"tokens_per_s": 12.5})
    found = json.loads(file.read_text())
    assert (found["benchmark"], found["settings"], found["results"]) == ("serve", {"users": 4}, {"tokens_per_s": 12.5})
    assert found["command"] == "headrace bench serve --users 4"
    assert abs(datetime.fromisoformat(found["date"]) - datetime.now(UTC)).total_seconds() < 60
    machine = found["machine"]
    assert machine["gpus"] == [{"name": "RTX 3090", "compute_capability": [8, 6], "memory_bytes": 24 << 30}]
    assert machine["driver"] == "580.65"
    assert machine["python"] == platform.python_version()
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["ram_bytes"] > 1 << 28
    assert machine["cpu"] and machine["torch"]


def test_figures_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.write(tmp_path / "result.json", "serve", {}, {"tokens_per_s": float("nan")})


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}"):
        record.write(tmp_path, "serve", {}, {})


@pytest.mark.parametrize("given", [["--api-key", "secret"], ["--api-key=secret"]])
def test_keys_are_masked(given: list[str]) -> None:
    line = record.command_line(["headrace", "bench", *given, "--users", "2"])
    assert "secret" not in line
    assert "***" in line and line.endswith("--users 2")
    assert record.record("serve", {"api_key": "secret"}, {})["settings"] == {"api_key": "***"}
    assert record.record("serve", {"api_key": None}, {})["settings"] == {"api_key": None}


def test_the_cpu_is_named_or_its_architecture_is(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Example 9000 @ 3 GHz\nprocessor\t: 1\nmodel name\t: Example 9000 @ 3 GHz\n")
    assert record.cpu_name(info) == "Example 9000 @ 3 GHz"
    info.write_text("processor\t: 0\n")
    assert record.cpu_name(info) == record.cpu_name(tmp_path / "none") == platform.machine()


def git(directory: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main")
    command = ["git", *settings, "-C", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_revision_is_that_of_a_clone_only(tmp_path: Path) -> None:
    package = tmp_path / "headrace"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert record.git_revision(package) is None
    git(tmp_path, "init")
    (tmp_path / "other").write_text("1")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-m", "other")
    assert record.git_revision(package) is None, "installed inside somebody else's repository"
    git(tmp_path, "add", "headrace/__init__.py")
    git(tmp_path, "commit", "-m", "package")
    git(tmp_path, "tag", "v1", "-a", "-m", "a release")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert record.git_revision(package) == commit
    (package / "__init__.py").write_text("changed")
    assert record.git_revision(package) == f"{commit}-dirty"


def test_importing_it_imports_no_torch() -> None:
    script = "import sys, headrace.bench.record as r; r.record('x', {}, {}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
