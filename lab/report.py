"""`python -m lab.report --work DIR --checkpoint DIR` writes the model card into a checkpoint: README.md, its picture, notices.

It reads the losses that lab.export wrote there, `held-out.json` of lab.held_out, and `acceptance.json`, a list of what
`headrace bench acceptance` measured, if there is one; and has the model write samples on the CPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from headrace.plan.hf_directory import open_directory
from headrace.plan.named import SHIPPED
from lab.batches import SHARES
from lab.card import DRAFTERS, NOTICE, PICTURE, Facts, card
from lab.curve import draw
from lab.export import DRAFTER, PARTS, TRAINING
from lab.held_out import FILE
from lab.samples import samples, served


def report(work: Path, checkpoint: Path, others: Sequence[Path] = ()) -> Facts:
    """Write it, and return what it says. others: checkpoints of other seeds, whose last losses are told.

    Raises FileNotFoundError naming a file that is missing, and which stage makes it.
    """
    held_out, acceptance = _json(work / FILE, "lab.held_out"), work / "acceptance.json"
    runs = _json(checkpoint / TRAINING, "lab.export")
    found = {name: runs[name] for name in PARTS if name in runs}
    facts = Facts(
        parameters(checkpoint), tokens(work), held_out, {name: run["steps"] for name, run in found.items()},
        {seed: loss for each in (checkpoint, *others) for seed, loss in last_loss(each).items()},
        json.loads(acceptance.read_text()) if acceptance.exists() else [], samples(work, served(checkpoint)),
        json.loads((checkpoint / "config.json").read_text()), platform.python_version(),
    )
    five_gram = float(np.mean([figures["five_gram"] for figures in held_out.values()]))
    drafters = {DRAFTERS[name]: run["losses"] for name, run in found.items() if name != "model"}
    draw(found["model"]["losses"], five_gram, drafters, checkpoint / PICTURE)
    (checkpoint / "README.md").write_text(card(facts), encoding="utf-8")
    notice = SHIPPED / "lab" / NOTICE
    if notice.resolve() != (checkpoint / NOTICE).resolve():
        shutil.copyfile(notice, checkpoint / NOTICE)
    return facts


def _json(path: Path, stage: str) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run {stage} first")
    return json.loads(path.read_text())


def last_loss(checkpoint: Path) -> dict[int, float]:
    """The model's last held-out loss, by its seed."""
    runs = _json(checkpoint / TRAINING, "lab.export")
    return {runs["seed"]: runs["model"]["losses"][-1][2]}


def parameters(checkpoint: Path) -> dict[str, int]:
    """Numbers of the model, of its multi-token head and of the drafter beside it."""
    counts = {"model": 0}
    for name, tensor in open_directory(checkpoint).tensors.items():
        part = "mtp" if name.startswith("mtp.") else "model"
        counts[part] = counts.get(part, 0) + prod(tensor.shape)
    if (checkpoint / DRAFTER).is_dir():
        drafter = open_directory(checkpoint / DRAFTER, tokenizer=False)
        counts["dflash"] = sum(prod(tensor.shape) for tensor in drafter.tensors.values())
    return counts


def tokens(work: Path) -> dict[str, tuple[int, int]]:
    """(learned from, held out) by kind."""
    found = {}
    for kind in SHARES:
        paths = [work / f"{part}-{kind}.npy" for part in ("train", "held-out")]
        if all(path.exists() for path in paths):
            learned, held_out = (len(np.load(path, mmap_mode="r")) for path in paths)
            found[kind] = (learned, held_out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="as lab.export wrote it")
    parser.add_argument("--other", type=Path, action="append", default=[], help="a checkpoint of another seed: its loss")
    options = parser.parse_args()
    facts = report(options.work, options.checkpoint, options.other)
    if not facts.acceptance:
        print(f"no acceptance.json in {options.work}: the card says nothing about what drafters guess")


if __name__ == "__main__":
    main()
