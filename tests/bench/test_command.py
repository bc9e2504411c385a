"""`headrace bench serve` as a user starts it, against a server in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADRACE = [sys.executable, "-c", "from headrace.cli import main; main()"]


def test_a_server_is_measured_and_the_figures_kept(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    scripted = [sys.executable, "-m", "tests.support.scripted_server", str(tmp_path)]
    with subprocess.Popen(scripted, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": "src:."}) as server:
        assert server.stdout is not None and server.stdout.readline() == "loading\n"
        url = server.stdout.readline().split()[-1]
        options = ("--url", url, "--concurrency", "2", "--requests", "4", "--input-tokens", "5", "--output-tokens", "10")
        command = [*HEADRACE, "bench", "serve", *options, "--token-ids", "70-90", "--api-key", "secret", "--json", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        server.terminate()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "4 of 4" in ended.stdout
    found = json.loads(file.read_text())
    (run,) = found["results"]["runs"]
    assert (run["completion_tokens"], run["prompt_tokens"], run["server"]["generation_tokens"]) == (40, 20, 40)
    assert run["tpot_ms"]["p50"] > 9.9, "the server makes a token every 10 ms"
    assert found["settings"]["input_tokens"] == "5" and "secret" not in file.read_text()


def test_no_server_is_one_line() -> None:
    command = [*HEADRACE, "bench", "serve", "--url", "http://127.0.0.1:1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stdout == "" and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("headrace: no server at http://127.0.0.1:1")
