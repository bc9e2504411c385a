from __future__ import annotations

import subprocess
import sys

import pytest


def headrace(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=timeout_s)


def test_help_lists_the_commands() -> None:
    shown = headrace("--help")
    assert shown.returncode == 0
    for command in ("serve", "plan", "info", "doctor", "chat", "bench"):
        assert f" {command} " in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--device", "tpu"], "device must be one of auto, cpu, cuda, not 'tpu'"),
        (["serve", "no/such/model"], "model no/such/model does not exist"),
        (["plan", "no/such/model"], "no/such/model is no file or directory, and no model with a name: demo, lab, qwen"),
        (["info", "no/such/model"], "model no/such/model does not exist"),
        (["info", "no\nsuch"], "model no such does not exist"),
        (["chat", "--url", "ftp://x"], "--url must look like"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    refused = headrace(*arguments)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith("headrace: ")
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_server_that_is_not_there_is_exit_code_1() -> None:
    refused = headrace("chat", "--url", "http://127.0.0.1:1")
    assert refused.returncode == 1
    assert refused.stderr.startswith("headrace: no server at")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["serve", "--help"], ["serve", "no/such/model"], ["chat", "--help"], ["bench", "--help"]]
)
def test_the_command_line_does_not_import_torch(arguments: list[str]) -> None:
    script = (
        f"import sys; sys.argv = ['headrace', *{arguments!r}]\n"
        f"try:\n    from headrace.cli import main\n    main()\n"
        "finally:\n    sys.stderr.write(f'[{\"torch\" in sys.modules}]')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stderr.endswith("[False]")


PURE = [
    "headrace", "headrace.types", "headrace.config", "headrace.registry", "headrace.hardware", "headrace.errors",
    "headrace.plan.checkpoint", "headrace.plan.budget", "headrace.plan.report", "headrace.scheduler.scheduler",
    "headrace.models", "headrace.models.spec", "headrace.engine.client", "headrace.engine.process", "headrace.server.app",
    "headrace.server.serve",
]  # fmt: skip


@pytest.mark.parametrize("module", PURE)
def test_the_pure_half_does_not_import_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
