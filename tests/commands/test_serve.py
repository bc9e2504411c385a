from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.tiny import make_tiny_checkpoint

from headrace.commands.chat_client import ChatClient
from headrace.commands.serve import chat_template
from headrace.config import ServerConfig
from headrace.engine.tokenizer import load_tokenizer
from headrace.errors import ConfigError

SERVE = [sys.executable, "-c", "from headrace.cli import main; main()", "serve"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("served") / "tiny-hybrid", "qwen3_5", mtp=True)


@contextmanager
def served(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running server and the first line of its standard output; it is killed in the end if it still runs."""
    command = [*SERVE, *arguments, "--port", "0", "--max-seqs", "2", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        limit = threading.Timer(90, process.kill)
        limit.start()
        try:
            yield process, process.stdout.readline()
        finally:
            limit.cancel()
            process.kill()


def test_a_hybrid_is_served_from_one_command_until_sigterm(checkpoint: Path) -> None:
    with served(str(checkpoint)) as (process, line):
        ready = re.fullmatch(r"headrace is ready: tiny-hybrid on (http://127\.0\.0\.1:\d+)\n", line)
        assert ready, line + process.communicate()[1]
        with urlopen(f"{ready[1]}/health") as answer:
            assert answer.status == 200
        client = ChatClient(ready[1], None)
        assert client.model() == "tiny-hybrid"
        hello = [{"role": "user", "content": "hello world"}]
        body = {"messages": hello, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        assert "".join(client.stream(body)) == "".join(client.stream({**body, "model": "tiny-hybrid"})) != ""
        process.send_signal(signal.SIGTERM)
        output, told = process.communicate(timeout=30)
        assert process.returncode == 0
    assert output == ""
    for words in ("qwen3_5 of 4 layers", "left out: vision tower", "for drafts: multi-token prediction", "memory on cpu"):
        assert words in told


def test_ctrl_c_while_loading_ends_it_quietly(checkpoint: Path) -> None:
    command = [*SERVE, str(checkpoint), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("model: ")
        process.send_signal(signal.SIGINT)
        output, told = process.communicate(timeout=30)
        assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "host 0.0.0.0 can be reached by others"),
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--chat-template", "no-such-file"], "--chat-template no-such-file: "),
        (["--drain-s", "nan"], "drain_s must be"),
    ],
)
def test_a_setting_that_cannot_work_is_told_at_once(checkpoint: Path, arguments: list[str], words: str) -> None:
    refused = subprocess.run([*SERVE, str(checkpoint), *arguments], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"headrace: {words}")
    assert refused.stderr.count("\n") == 1


def test_a_template_that_is_none_is_told_with_its_file(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jinja").write_text("{% for x in %}")
    with pytest.raises(ConfigError, match=r"--chat-template .*bad\.jinja: .*line 1"):
        chat_template(ServerConfig(chat_template=str(tmp_path / "bad.jinja")), load_tokenizer(checkpoint))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda d: (d / "config.json").write_text(json.dumps({"model_type": "mamba9"})), "'mamba9'"),
        (lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-5]), "model.safetensors"),
    ],
    ids=["no tokenizer", "unknown model", "truncated"],
)
def test_a_broken_checkpoint_is_told_within_two_seconds(tmp_path: Path, spoil: object, words: str) -> None:
    directory = make_tiny_checkpoint(tmp_path / "broken")
    assert callable(spoil)
    spoil(directory)
    before_s = children_cpu_s()
    refused = subprocess.run([*SERVE, str(directory)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert children_cpu_s() - before_s < 2


def children_cpu_s() -> float:
    """Processor time of the commands that have ended: unlike the clock's, it does not grow when the machine is busy."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
