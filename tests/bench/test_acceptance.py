"""`headrace bench acceptance`: what is counted, on a tiny model whose drafts are sometimes right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.tiny import make_tiny_checkpoint
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace.bench.scenarios import acceptance
from headrace.bench.text_engine import DecodedStep
from headrace.errors import ConfigError

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a multi-token head, and a drafter beside it."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", seed=6, mtp=True)
    config = dflash_config(json.loads((folder / "config.json").read_text())["vocab_size"])
    write_dflash(folder / "drafter", config, dflash_tensors(config))
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for kind, texts in (("chat", [CHAT.format(n * "word ") for n in range(5)]), ("prose", ["and the world " * 40] * 2)):
        lines = [json.dumps({"kind": kind, "name": str(number), "text": text}) for number, text in enumerate(texts)]
        (folder / f"held-out-{kind}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_tokens_of_a_step_are_those_of_its_row() -> None:
    steps = [DecodedStep("chat/1", 3, 2, False), DecodedStep("chat/1", 3, 4, False), DecodedStep("chat/2", 0, 1, False)]
    found = acceptance.counted(steps, "lookup", 3, "chat", 0.5)
    assert (found.tokens_a_step, found.steps, found.drafted, found.tokens_a_verification) == (7 / 3, 3, 2 / 3, 3.0)
    assert found.error == pytest.approx((14 / 9 / 3) ** 0.5)
    assert acceptance.counted(steps[2:], "lookup", 3, "chat", 0.5).tokens_a_verification == 1.0


@pytest.mark.parametrize("seeded", [False, True])
def test_a_run(model: Path, texts: Path, seeded: bool, tmp_path: Path) -> None:
    settings = acceptance.Settings(
        model=str(model), text=(str(texts),), way=("mtp:1", "mtp:3", "dflash:2", "lookup:7"), temperature=(0.0, 0.8),
        device="cpu", dtype="float32", tokens=24, max_seqs=4, prompts=3, seeded=seeded, out=str(tmp_path / "acceptance.json"),
    )
    found = acceptance.run(settings, Console(quiet=True))
    assert found["seeded"] is seeded and json.loads((tmp_path / "acceptance.json").read_text()) == found["acceptance"]
    entries = {(e["drafter"], e["k"], e["kind"], e["temperature"]): e for e in found["acceptance"]}
    ways = (("mtp", 1), ("mtp", 3), ("dflash", 2), ("lookup", 7))
    assert set(entries) == {(*way, kind, t) for way in ways for kind in ("chat", "prose") for t in (0.0, 0.8)}
    for (drafter, k, *_), entry in entries.items():
        assert 1 <= entry["tokens_a_step"] <= 1 + k and entry["steps"] > 5
        assert drafter == "lookup" or entry["drafted"] == 1
    assert any(entry["tokens_a_step"] > 1 for entry in found["acceptance"])


def test_counts_are_the_tokens_of_the_answers(model: Path, texts: Path) -> None:
    """Of every request: those of its steps, and the one that its prompt gives, but for the step that fills the answer."""
    from headrace.bench.held_out import prompts, read_texts
    from headrace.types import SamplingParams

    settings = acceptance.Settings(model=str(model), device="cpu", dtype="float64")
    engine = acceptance.engine_of(settings, "mtp", 3, 600, 2)
    requests = engine.requests(
        prompts(read_texts([str(texts)]), engine.tokenizer, 5, 400), SamplingParams(max_tokens=20, ignore_eos=True), True
    )
    steps = list(engine.follow(requests, engine.fixed(3)))
    for request in requests:
        mine = [step for step in steps if step.request == request.id]
        assert sum(step.tokens for step in mine) == 19 and [step.cut for step in mine] == [False] * (len(mine) - 1) + [True]
        assert all(1 <= step.tokens <= step.drafts + 1 <= 4 for step in mine)
    with pytest.raises(ConfigError, match="4 drafts: a row has 3"):
        engine.fixed(4)
    engine.close()


def test_a_step_with_room_for_one_token_is_cut_however_it_ends(model: Path, texts: Path) -> None:
    """It has no drafts, since none could follow its token, which here ends the message at its limit."""
    from headrace.bench.held_out import prompts, read_texts
    from headrace.types import SamplingParams

    engine = acceptance.engine_of(acceptance.Settings(model=str(model), device="cpu", dtype="float64"), "mtp", 3, 600, 1)
    params = SamplingParams(max_tokens=2, temperature=0)
    (request,) = engine.requests(prompts(read_texts([str(texts)]), engine.tokenizer, 1, 400)[:1], params, True)
    first = replace(request, eos_ids=())
    core = engine.core(engine.fixed(3))
    core.add(first)
    said = [token for _ in range(9) if core.has_work for event in core.step() for token in event.tokens]
    assert len(said) == 2 and said[0] != said[1]
    ends = replace(first, id="ends", params=replace(first.params, stop_token_ids=(said[1],)))
    assert [(step.drafts, step.tokens, step.cut) for step in engine.follow([ends], engine.fixed(3))] == [(0, 1, True)]
    engine.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"way": ("mtp",)}, "--way mtp"), ({"way": ("mtp:0",)}, "--way mtp:0"), ({"way": ("guess:3",)}, "--way guess:3"),
        ({}, "--text is needed"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, tuple[str, ...]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        acceptance.run(acceptance.Settings(device="cpu", **settings), Console(quiet=True))
