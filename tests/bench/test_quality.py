"""`headrace bench quality`: figures from made-up log-probabilities, texts, and a run on a CPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.tiny import make_tiny_checkpoint

from headrace.bench.perplexity import Losses, losses_table
from headrace.bench.scenarios import quality
from headrace.bench.teacher import Followed
from headrace.bench.token_texts import cut, read_tokens
from headrace.errors import ConfigError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", seed=9)


def settings(checkpoint: Path, *texts: Path, **fields: Any) -> quality.Settings:
    given: dict[str, Any] = {"device": "cpu", "length": 100, "tokens": 300, "max_seqs": 2} | fields
    return quality.Settings(model=str(checkpoint), text=tuple(map(str, texts)), **given)


def test_losses_are_beside_the_first_types_and_beside_steps() -> None:
    losses = Losses(("bf16", "fp32"))
    followed = Followed((np.array([-1.0, -2.0]), np.array([-3.0])), Counter())
    first = losses.add(("bf16", "fp32"), "steps", followed)
    assert (first.tokens, first.loss, first.over_reference, first.error, first.over_steps) == (3, 2.0, 0.0, 0.0, None)
    assert first.perplexity == pytest.approx(np.exp(2.0)) and first.accepted is None
    worse = losses.add(("int8", "fp32"), "steps", Followed((np.array([-1.1, -2.1]), np.array([-3.1])), Counter()))
    assert worse.over_reference == pytest.approx(np.exp(0.1) - 1) and worse.error == pytest.approx(0, abs=1e-12)
    pairs = Counter({(15, 3): 2, (7, 0): 1})
    drafted = losses.add(("bf16", "fp32"), "drafts", Followed((np.array([-1.1, -2.2]), np.array([-3.0])), pairs))
    assert drafted.over_steps == pytest.approx(0.05) and drafted.accepted == 2 and drafted.error == 0
    assert losses_table([first, worse, drafted]).row_count == 3


def test_texts_are_taken_in_turn_and_cut() -> None:
    texts = [np.arange(25), np.arange(100, 112), np.arange(200, 203)]
    assert cut(texts, 1000, 5) == [
        [0, 1, 2, 3, 4], [100, 101, 102, 103, 104], [5, 6, 7, 8, 9], [105, 106, 107, 108, 109],
        [10, 11, 12, 13, 14], [15, 16, 17, 18, 19], [20, 21, 22, 23, 24],
    ]
    assert len(cut(texts, 14, 5)) == 2 and len(cut(texts, 3, 5)) == 1 and cut(texts[2:], 1000, 5) == []


def test_ids_and_texts_are_read_and_others_are_named(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path)
    np.save(tmp_path / "ids.npy", np.array([5, 0, 9], np.uint16))
    (tmp_path / "text.md").write_text("Grüße", encoding="utf-8")
    assert read_tokens(str(tmp_path / "ids.npy"), lambda: tokenizer, 10).tolist() == [5, 0, 9]
    assert read_tokens(str(tmp_path / "text.md"), lambda: tokenizer, 1000).tolist() == tokenizer.encode("Grüße")
    np.save(tmp_path / "table.npy", np.zeros((2, 2), np.int64))
    np.save(tmp_path / "real.npy", np.zeros(3))
    (tmp_path / "broken.npy").write_bytes(b"no array")
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xfa")
    for name, words in [
        ("ids.npy", "ids are from 0 to 8"), ("table.npy", "one dimension"), ("real.npy", "integers"), ("broken.npy", "broken"),
        ("latin", "latin"), ("none.txt", "none.txt"),
    ]:
        with pytest.raises(ConfigError, match=words):
            read_tokens(str(tmp_path / name), lambda: tokenizer, 9)


def test_a_run_on_a_cpu(checkpoint: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "ids.npy", rng.integers(3, 250, 250))
    (tmp_path / "text.txt").write_text("the hall of the world and the end of it " * 20, encoding="utf-8")
    types = ("auto/fp32", "int8/fp32", "auto/fp16")
    found = quality.run(
        settings(checkpoint, tmp_path / "ids.npy", tmp_path / "text.txt", types=types, free=60, speculate="lookup"),
        Console(quiet=True),
    )
    assert found["sequences"] == 3 and len(found["followed"]) == 9
    by = {(each["kv"], each["state"], each["way"]): each for each in found["followed"]}
    assert {each["tokens"] for each in found["followed"]} == {3 * 99}
    for each in by.values():  # in float32 the way changes nothing, whatever is kept in how many bits but for what was rounded
        assert each["loss"] > 1 and each["perplexity"] == pytest.approx(np.exp(each["loss"]))
        assert abs(each["over_reference"]) < 0.02
    for way in quality.WAYS:
        assert by["auto", "fp32", way]["over_reference"] == 0
        assert 0 < by["int8", "fp32", way]["error"] < 0.01
    assert abs(by["auto", "fp32", "drafts"]["over_steps"]) < 1e-5 and abs(by["auto", "fp32", "prompts"]["over_steps"]) < 1e-5
    assert by["auto", "fp32", "drafts"]["accepted"] > 2
    assert [(each["state"], each["drafts"]) for each in found["written"]] == [
        ("fp32", False), ("fp32", True), ("fp16", False), ("fp16", True)
    ]
    assert all(each["tokens"] == 72 and each["loss"] > 0.1 for each in found["written"])
    assert all(each["tokens_a_row"] == 1 for each in found["written"] if not each["drafts"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"types": ("int9/fp16",)}, "--types int9/fp16: one of"), ({"types": ("int8",)}, "--types int8: one of"),
        ({"way": ("guess",)}, "--way guess: one of steps, prompts, drafts"), ({"length": 1}, "--length must be from 2 to 1024"),
        ({"length": 2000}, "--length must be from 2 to 1024"), ({"length": 64, "free": 1}, "--length must be from 65"),
        ({"free": 1, "speculate": "off"}, "--speculate must name who drafts"), ({"length": 500}, "no --text has as many"),
    ],
)
def test_what_cannot_be_is_named(checkpoint: Path, tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    np.save(tmp_path / "ids.npy", np.zeros(300, np.int64))
    with pytest.raises(ConfigError, match=words):
        quality.run(settings(checkpoint, tmp_path / "ids.npy", **fields), Console(quiet=True))


def test_texts_are_wanted(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="--text is needed"):
        quality.run(settings(checkpoint), Console(quiet=True))
