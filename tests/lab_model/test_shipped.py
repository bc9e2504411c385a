"""What is shipped: whole, small and documented, and served by its name as the README says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess

from headrace import LLM, SamplingParams
from headrace.commands.chat_client import ChatClient
from headrace.commands.serve import chat_template
from headrace.config import ServerConfig
from headrace.engine.tokenizer import load_tokenizer

HEADRACE = [sys.executable, "-c", "from headrace.cli import main; main()"]
MOST_BYTES, MOST_FILE_BYTES = 40_000_000, 16 << 20
QUESTION = [{"role": "user", "content": "Tell me about the sea."}]
README = Path(__file__).parents[2] / "README.md"
COMMANDS = re.findall(r"^    (?:\.venv/bin/)?headrace serve (lab.*)$", README.read_text(), re.MULTILINE)


def test_it_is_whole_and_small(lab_model: Path) -> None:
    files = [file for file in lab_model.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    assert max(file.stat().st_size for file in files) <= MOST_FILE_BYTES
    index = json.loads((lab_model / "model.safetensors.index.json").read_text())
    assert {file.name for file in lab_model.glob("*.safetensors")} == set(index["weight_map"].values())
    assert (lab_model / "drafter" / "config.json").is_file() and any(name.startswith("mtp.") for name in index["weight_map"])


def test_its_card_says_where_it_comes_from(lab_model: Path) -> None:
    card = (lab_model / "README.md").read_text()
    for heading in ("Sizes", "Data", "Training", "Held-out loss", "What drafters guess", "Samples", "What it is not for"):
        assert f"\n## {heading}\n" in card
    for link in re.findall(r"\]\(([^)]+)\)", card):
        assert (lab_model / link).is_file(), link
    assert "Apache License" in (lab_model / "NOTICE").read_text()


def test_it_answers_in_english_and_ends_its_turn(lab_model: Path) -> None:
    tokenizer = load_tokenizer(lab_model)
    template = chat_template(ServerConfig(), tokenizer)
    assert template is not None
    params = [SamplingParams(max_tokens=400, temperature=0.7, top_p=0.95, seed=seed) for seed in range(4)]
    with LLM("lab", device="cpu", context=512, max_seqs=4) as llm:
        done = llm.generate([template.encode(QUESTION)] * 4, params)
    assert sum(answer.finish_reason == "stop" for answer in done) >= 2
    assert {"the", "and", "of"} <= set(" ".join(answer.text for answer in done).lower().split())


def test_the_readme_has_commands_for_it() -> None:
    assert COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readmes_commands_serve_it(lab_model: Path, command: str, tmp_path: Path) -> None:
    name, *flags = command.partition("#")[0].split()
    small = ("--device", "cpu", "--context", "512", "--max-seqs", "2")
    with ServerProcess(Path(name), *flags, *small, log=tmp_path / "log") as server:
        client = ChatClient(server.url, None)
        assert client.model() == "lab"
        assert "".join(client.stream({"messages": QUESTION, "max_tokens": 16, "seed": 1}))


def test_plan_and_info_know_it(lab_model: Path) -> None:
    flags = ("--gpu", "rtx3090", "--speculate", "dflash", "--json")
    asked = subprocess.run([*HEADRACE, "plan", "lab", *flags], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    plan = json.loads(asked.stdout)
    assert plan["fits"] and any(line["name"] == "weights dflash" for line in plan["lines"])
    told = subprocess.run([*HEADRACE, "info", "lab", "--json"], capture_output=True, text=True, timeout=60)
    assert json.loads(told.stdout)["mtp_layers"] == 1
