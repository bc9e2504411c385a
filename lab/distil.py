"""Stage 6: `python -m lab.distil --work DIR --drafter mtp|dflash` trains a drafter on what the model wrote."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lab.acceptance import Draft, accepted, expected_tokens, reached, weighted_loss
from lab.chat import MASK, SPECIAL
from lab.dflash import BlockDrafter, DrafterShape
from lab.model import LabModel
from lab.mtp import MtpHead
from lab.saved import Progress, resume, save
from lab.schedule import advance, optimisers, rate
from lab.shape import Shape

MASK_ID = SPECIAL.index(MASK)
Forward = Callable[[Tensor, torch.Generator], list[Draft]]


@dataclass(frozen=True, slots=True)
class Plan:
    """rows sequences a step. depths: drafts of the MTP head that are trained; anchors: blocks in a sequence, each `block`'s."""

    steps: int = 1500
    rows: int = 32
    seed: int = 0
    depths: int = 4
    anchors: int = 128
    block: DrafterShape = DrafterShape()
    seconds: float | None = None
    report: int = 100


def mtp_drafts(target: LabModel, head: MtpHead, depths: int) -> Forward:
    def drafts(ids: Tensor, _: torch.Generator) -> list[Draft]:
        """ids [B, L]: row t of draft j, counted from 1, and the target's row t + j are of the token at t + j + 1."""
        with torch.no_grad():
            hidden, _taps = target.hidden(ids)
            following = target.model.embed_tokens(ids[:, 1:])
        rows = ids.shape[1] - depths - 1
        outs = head(hidden[:, :rows], following, depths)
        return [Draft(_without_gradient(target, hidden[:, j : j + rows]), target.logits(out), ids[:, j + 1 : j + 1 + rows])
                for j, out in enumerate(outs, start=1)]
    return drafts


def dflash_drafts(target: LabModel, drafter: BlockDrafter, count: int) -> Forward:
    def drafts(ids: Tensor, random: torch.Generator) -> list[Draft]:
        """Blocks at `count` anchors of each sequence: slot s, counted from 1, is of the token at anchor + s."""
        block = drafter.shape.block
        with torch.no_grad():
            hidden, taps = target.hidden(ids, drafter.shape.targets)
        anchors = torch.randint(1, ids.shape[1] - block, (len(ids), count), generator=random).to(ids.device)
        embed = target.model.embed_tokens
        out = drafter(torch.cat(taps, -1), anchors, embed(ids.gather(1, anchors)).detach(), embed.weight[MASK_ID].detach())
        found = []
        for slot in range(1, block):
            before = anchors + slot - 1
            wanted = hidden.gather(1, before[..., None].expand(-1, -1, hidden.shape[-1]))
            logits = target.logits(out[:, :, slot])
            candidates = logits.topk(drafter.shape.top_k).indices  # without the edges, as drafts are drawn
            edges = drafter.candidate_selector(out[:, :, slot], ids.gather(1, before), candidates)
            scores, said = logits.gather(-1, candidates) + edges, ids.gather(1, before + 1)
            found.append(Draft(_without_gradient(target, wanted), logits, said, candidates, scores))
        return found
    return drafts


@torch.no_grad()
def _without_gradient(target: LabModel, hidden: Tensor) -> Tensor:
    return target.logits(hidden)


def build(name: str, target: LabModel, plan: Plan) -> tuple[nn.Module, Forward]:
    """A new drafter and its forward. Raises ValueError for a name that there is not."""
    if name == "mtp":
        head = MtpHead(target.shape)
        return head, mtp_drafts(target, head, plan.depths)
    if name == "dflash":
        drafter = BlockDrafter(target.shape, plan.block)
        return drafter, dflash_drafts(target, drafter, plan.anchors)
    raise ValueError(f"no drafter is called {name!r}: mtp or dflash")


def distil(
    work: Path, name: str, target: LabModel, train: NDArray[np.uint16], held_out: NDArray[np.uint16], plan: Plan,
    device: torch.device,
) -> tuple[nn.Module, Progress]:
    """train, held_out [N, L]: sequences that the target wrote. The target stays as it is."""
    torch.manual_seed(plan.seed)
    target = target.to(device).eval().requires_grad_(False)
    drafter, forward = build(name, target, plan)
    drafter.to(device)
    chosen, path = optimisers(drafter), work / f"{name}-{plan.seed}.pt"
    progress, started = resume(path, drafter, chosen), time.monotonic()
    while progress.step < plan.steps and not (plan.seconds and time.monotonic() - started > plan.seconds):
        random = torch.Generator().manual_seed(plan.seed * 1_000_003 + progress.step)
        rows = train[torch.randint(len(train), (plan.rows,), generator=random).numpy()]
        loss = _loss(forward, rows, random, device)
        loss.backward()
        advance(drafter, chosen, rate(progress.step, plan.steps))
        progress.step += 1
        if progress.step % plan.report == 0 or progress.step == plan.steps:
            chances, tokens = estimated(forward, held_out[: plan.rows], device)
            progress.losses.append((progress.step, loss.item(), tokens))
            places = " ".join(f"{chance:.2f}" for chance in chances)
            print(f"{name} step {progress.step}: {loss.item():.3f}; accepted by place {places}, "
                  f"{progress.losses[-1][2]:.2f} tokens a step; {time.monotonic() - started:.0f} s", flush=True)
            save(path, drafter, chosen, progress)
    save(path, drafter, chosen, progress)
    return drafter, progress


def _loss(forward: Forward, rows: NDArray[np.uint16], random: torch.Generator, device: torch.device) -> Tensor:
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        drafts = forward(torch.from_numpy(rows.astype(np.int64)).to(device), random)
    return weighted_loss(drafts)


@torch.no_grad()
def estimated(forward: Forward, rows: NDArray[np.uint16], device: torch.device) -> tuple[list[float], float]:
    """Mean chance of acceptance by place, of the drafts that get there, and tokens a step."""
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        drafts = forward(torch.from_numpy(rows.astype(np.int64)).to(device), torch.Generator().manual_seed(0))
    weights = reached(drafts).flatten(0, -2)
    chances = torch.stack([accepted(draft) for draft in drafts], -1).flatten(0, -2)
    return ((chances * weights).sum(0) / weights.sum(0).clamp(min=1e-9)).tolist(), float(expected_tokens(drafts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--drafter", required=True, choices=("mtp", "dflash"))
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--rows", type=int, default=Plan().rows)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    parser.add_argument("--seconds", type=float, help="end this piece after so long; the next call goes on")
    options = parser.parse_args()
    target = LabModel(Shape())
    target.load_state_dict(torch.load(options.work / f"model-{options.seed}.pt", weights_only=True)["model"])
    sequences = {part: np.load(options.work / f"{part}-own.npy") for part in ("train", "held-out")}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    plan = Plan(options.steps, options.rows, options.seed, seconds=options.seconds)
    distil(options.work, options.drafter, target, sequences["train"], sequences["held-out"], plan, device)


if __name__ == "__main__":
    main()
