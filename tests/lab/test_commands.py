"""The stages' commands, one behind the other as lab/README.md has them, on little text: what each leaves the next one finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab.chat import written
from lab.document import Document, write

ROOT = Path(__file__).resolve().parents[2]
STAGES = [
    "lab.tokenizer --work {w}",
    "lab.train --work {w} --steps 2 --joins 1 --rows 1",
    "lab.baseline --work {w}",
    "lab.export --work {w} --out {w}/checkpoint",
    "lab.own --work {w} --model {w}/checkpoint --count 2 --engines 1",
    "lab.distil --work {w} --drafter mtp --steps 2 --rows 1",
    "lab.distil --work {w} --drafter dflash --steps 2 --rows 1",
    "lab.export --work {w} --out {w}/checkpoint",
    "lab.held_out --work {w} --checkpoint {w}/checkpoint --windows 2",
    "headrace bench acceptance --model {w}/checkpoint --text {w} --device cpu --dtype float32 --prompts 1 --tokens 4 "
    "--way mtp:1 --way dflash:1 --out {w}/acceptance.json",
    "lab.report --work {w} --checkpoint {w}/checkpoint",
    "lab.sample --work {w} --out {w}/samples",
]


@pytest.mark.long
def test_every_stage_by_its_command(tmp_path: Path) -> None:
    prose = [Document("prose", path.name, path.read_text()) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    code = [Document("code", path.name, path.read_text()) for path in sorted((ROOT / "src" / "headrace" / "plan").glob("*.py"))]
    chat = [Document("chat", f"chat/{n}", written([f"What is {n} and 1?", f"It is {n + 1}."])) for n in range(400)]
    for documents in (prose, code, chat):
        write(tmp_path / f"train-{documents[0].kind}.jsonl", documents[len(documents) // 4 :])
        write(tmp_path / f"held-out-{documents[0].kind}.jsonl", documents[: len(documents) // 4])
    for stage in STAGES:
        ended = subprocess.run(
            [sys.executable, "-m", *stage.format(w=tmp_path).split()], cwd=ROOT, capture_output=True, text=True, timeout=900
        )
        assert ended.returncode == 0, f"{stage}: {ended.stderr[-2000:]}"
    card = (tmp_path / "checkpoint" / "README.md").read_text()
    losses = json.loads((tmp_path / "held-out.json").read_text())
    assert "mtp" in card and (tmp_path / "checkpoint" / "drafter" / "config.json").is_file() and losses
    assert {path.name for path in (tmp_path / "samples").iterdir()} >= {"held-out-prose.jsonl", "held-out-chat.jsonl"}
