"""Drafters learn a small model's ways; what is exported is what was trained, served by the engine."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from lab.acceptance import Draft, accepted, drafter_loss, expected_tokens, reached, weighted_loss
from lab.dflash import BlockDrafter, DrafterShape
from lab.distil import Plan, dflash_drafts, distil, mtp_drafts
from lab.engines import Engines, Written
from lab.export import write_checkpoint, write_drafter
from lab.model import LabModel
from lab.mtp import MtpHead
from lab.own import sequences, write_parts
from lab.shape import Shape
from lab.tokenizer import train as train_tokenizer
from safetensors import safe_open

from headrace import LLM, SamplingParams

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(small: Shape) -> LabModel:
    torch.manual_seed(0)
    model = LabModel(small)
    for weight in model.parameters():
        weight.data *= 3  # a head that prefers some tokens clearly
    return model.eval()


@pytest.fixture(scope="module")
def own(target: LabModel) -> np.ndarray:
    return np.random.default_rng(0).integers(4, 64, (48, 40)).astype(np.uint16)


@pytest.mark.parametrize("name", ["mtp", "dflash"])
def test_a_drafter_learns(name: str, target: LabModel, own: np.ndarray, tmp_path: Path) -> None:
    plan = Plan(steps=30, rows=8, depths=2, anchors=4, report=10, block=replace(DrafterShape(), targets=(0, 3), block=4))
    before = [weight.clone() for weight in target.parameters()]
    _, progress = distil(tmp_path, name, target, own[:40], own[40:], plan, CPU)
    assert [step for step, *_ in progress.losses] == [10, 20, 30]
    assert progress.losses[-1][1] < progress.losses[0][1] and progress.losses[-1][2] > progress.losses[0][2]
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))


@pytest.mark.parametrize("name", ["mtp", "dflash"])
def test_pieces_are_the_whole(name: str, target: LabModel, own: np.ndarray, tmp_path: Path) -> None:
    plan = Plan(steps=4, rows=4, depths=2, anchors=4, report=3, block=replace(DrafterShape(), targets=(0, 3), block=4))
    (tmp_path / "pieces").mkdir()
    whole, _ = distil(tmp_path, name, target, own[:40], own[40:], plan, CPU)
    steps = []
    while not steps or steps[-1] < 4:
        pieces, progress = distil(tmp_path / "pieces", name, target, own[:40], own[40:], replace(plan, seconds=0.001), CPU)
        steps.append(progress.step)
        assert len(steps) < 9
    assert len(steps) > 1
    for key, weight in whole.state_dict().items():
        assert torch.equal(weight, pieces.state_dict()[key]), key


@torch.no_grad()
def test_each_draft_is_compared_with_the_target_there(target: LabModel, own: np.ndarray, small: Shape) -> None:
    """The target's side of every pair: its logits where the token in question is drawn."""
    ids = torch.from_numpy(own[:2].astype(np.int64))
    logits = target(ids)
    for depth, draft in enumerate(mtp_drafts(target, MtpHead(small), 3)(ids, torch.Generator()), start=1):
        torch.testing.assert_close(draft.wanted, logits[:, depth : depth + 36])
        assert torch.equal(draft.said, ids[:, depth + 1 : depth + 37])
        assert draft.logits.shape == draft.wanted.shape and draft.candidates is None
    drafter = BlockDrafter(small, replace(DrafterShape(), targets=(0, 3), block=4, top_k=5))
    anchors = torch.randint(1, 36, (2, 3), generator=torch.Generator().manual_seed(7))
    known = int(ids[1, anchors[1, 2] + 1])  # before the second slot's token
    codebook = drafter.candidate_selector.predecessor_codebook.data
    codebook[torch.arange(len(codebook)) != known] = 0
    for slot, draft in enumerate(dflash_drafts(target, drafter, 3)(ids, torch.Generator().manual_seed(7)), start=1):
        torch.testing.assert_close(draft.wanted[1, 2], logits[1, anchors[1, 2] + slot - 1])
        assert draft.candidates is not None and draft.scores is not None
        assert torch.equal(draft.said, ids.gather(1, anchors + slot))
        assert torch.equal(draft.candidates, draft.logits.topk(5).indices)
        edges = draft.scores - draft.logits.gather(-1, draft.candidates)
        behind_known = ids.gather(1, anchors + slot - 1) == known
        assert torch.equal(edges.abs().sum(-1) > 1e-6, behind_known) and (slot != 2 or behind_known[1, 2])


def test_acceptance_and_its_loss() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.1, 0.6, 0.3]).log()
    draft = Draft(p, q, torch.tensor(0))
    assert abs(float(accepted(draft)) - 0.6) < 1e-6
    assert abs(float(drafter_loss(draft)) - (0.3 * -float((p.exp() * q).sum()) + 0.4)) < 1e-6


def test_only_candidates_are_drawn_and_accepted() -> None:
    """q = (0.75, 0.25) over the tokens 2 and 0: min(0.2, 0.75) + min(0.5, 0.25) is accepted."""
    p, all_of_q = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.3, 0.2, 0.5]).log()
    draft = Draft(p, all_of_q, torch.tensor(0), torch.tensor([2, 0]), torch.tensor([0.75, 0.25]).log() + 3)
    assert abs(float(accepted(draft)) - 0.45) < 1e-6
    crossed = -float((p.exp() * all_of_q).sum()) - 0.2 * math.log(0.75) - 0.5 * math.log(0.25)
    assert abs(float(drafter_loss(draft)) - (0.3 * crossed + 0.55)) < 1e-6


@pytest.mark.parametrize("candidates", [None, [2, 0]])
def test_what_a_step_yields_is_estimated_from_texts_of_the_target(candidates: list[int] | None) -> None:
    """All texts of three tokens by their probabilities, beside all that can be drafted and accepted. Every draft's q depends on
    the token before it.
    """
    random = torch.Generator().manual_seed(0)
    p, q = (torch.randn(3, 3, generator=random, dtype=torch.float64).log_softmax(-1) for _ in range(2))  # [before, token]
    if candidates is not None:
        q = q.index_fill(1, torch.tensor([1]), -torch.inf).log_softmax(-1)
    texts = torch.cartesian_prod(*[torch.arange(3)] * 3)  # the first stands behind the token 0
    before = torch.cat([torch.zeros(27, 1, dtype=torch.int64), texts[:, :2]], 1)
    drafts = []
    for place in range(3):
        wanted, logits = p[before[:, place]], q[before[:, place]]
        among = None if candidates is None else torch.tensor([candidates] * 27)
        drafts.append(Draft(wanted, logits, texts[:, place], among, None if among is None else logits.gather(1, among)))
    shares = p[before, texts].sum(1).exp()
    chances = torch.stack([accepted(draft) for draft in drafts], -1).double()
    minima = torch.minimum(p.exp(), q.exp())
    alive, expected = torch.tensor([1.0, 0, 0], dtype=torch.float64), 0.0
    for _ in range(3):
        alive = alive @ minima
        expected += float(alive.sum())
    assert float((shares[:, None] * reached(drafts) * chances).sum()) == pytest.approx(expected, rel=1e-5)
    assert float(expected_tokens(drafts)) == pytest.approx(1 + float((reached(drafts) * chances).sum(1).mean()), rel=1e-5)


def test_later_drafts_count_as_far_as_they_are_got_to() -> None:
    sure, wrong = torch.tensor([9.0, 0, 0]), torch.tensor([0, 9.0, 0])
    good, bad = (Draft(sure[None], logits[None], torch.tensor([0])) for logits in (sure, wrong))
    assert float(expected_tokens([bad, good])) < 1.01 < 2.9 < float(expected_tokens([good, good]))
    assert float(weighted_loss([bad, good])) > float(weighted_loss([good, bad])) > float(weighted_loss([good, good]))


def test_own_sequences_begin_as_texts_do() -> None:
    texts = {"prose": np.arange(200, dtype=np.uint16), "chat": np.arange(300, 600, dtype=np.uint16)}
    found = sequences(texts, 20, 32, 0, lambda prompts, counts: [[7] * count for count in counts])
    assert found.shape == (20, 32)
    for row in found:
        prompt = row[row != 7] if row[0] > 7 else row[: np.flatnonzero(np.diff(row.astype(int)) != 1)[0] + 1]
        assert 4 <= len(prompt) < 16 and (np.diff(prompt.astype(int)) == 1).all()
    assert {bool(row[0] >= 300) for row in found} == {True, False}
    late = sequences(texts, 20, 32, 0, lambda prompts, counts: [[7] * count if n else None for n, count in enumerate(counts)])
    assert (late == found[1:]).all()


def test_too_little_time_for_any_own_sequence_is_told(tmp_path: Path) -> None:
    """And nothing is kept, where there was time for the first part alone."""
    for part in ("held-out", "train"):
        np.save(tmp_path / f"{part}-prose.npy", np.arange(600, dtype=np.uint16))
    calls: list[int] = []

    def late(prompts: list[list[int]], params: list[SamplingParams], seconds: float | None) -> list[Written | None]:
        calls.append(len(prompts))
        return [Written("", [7] * each.max_tokens, False) if len(calls) == 1 and each.max_tokens else None for each in params]

    with pytest.raises(SystemExit, match=r"train: no sequence was written, of 4 that were asked for in 0\.5 seconds"):
        write_parts(tmp_path, 4, cast(Engines, late), 0.5)
    assert not list(tmp_path.glob("*-own.npy"))


def test_the_checkpoint_is_served(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(iter(["some text to learn a few words from, some more text"] * 20), 300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    shape = Shape(vocabulary=tokenizer.get_vocab_size(), hidden=64, layers=4, intermediate=48, heads=2, kv_heads=1,
                  head_size=32, key_heads=1, value_heads=2, state_size=16, context=128)
    torch.manual_seed(1)
    model = LabModel(shape).to(torch.bfloat16)
    for weight in model.parameters():
        weight.data *= 3
    block = replace(DrafterShape(), targets=(1, 3))
    head, drafter = MtpHead(shape), BlockDrafter(shape, block)
    write_checkpoint(tmp_path / "lab", shape, tmp_path / "tokenizer.json", model.state_dict(), head.state_dict())
    write_drafter(tmp_path / "lab" / "drafter", shape, block, drafter.state_dict())
    prompt = tokenizer.encode("some text to learn").ids
    with LLM(tmp_path / "lab", dtype="float32", device="cpu") as llm:
        (done,) = llm.generate([prompt], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(12):
            ids = torch.cat([ids, model.float()(ids)[:, -1:].argmax(-1)], 1)
    assert list(done.tokens) == ids[0, len(prompt) :].tolist()
    with safe_open(tmp_path / "lab" / "drafter" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(drafter.state_dict())


def test_files_are_as_small_as_asked(tmp_path: Path) -> None:
    from lab.export import write_tensors

    tensors = {f"w{number}": torch.full((1000,), float(number)) for number in range(7)}
    write_tensors(tmp_path, tensors, most=5000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == 4 and index["metadata"]["total_size"] == 14_000
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, "pt") as opened:
            assert torch.equal(opened.get_tensor(name), tensors[name].bfloat16())
