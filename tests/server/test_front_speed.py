"""The benchmark of the front, in short: 6,000 tokens a second over 64 streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_front_keeps_up() -> None:
    command = [sys.executable, "benchmarks/front.py", "--seconds", "5"]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "src"}, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
