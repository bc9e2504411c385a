"""Stage 4: `python -m lab.train --work DIR` trains the model, in as many pieces as it is interrupted."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.batches import Ids, Windows, spread, streams
from lab.model import LabModel
from lab.saved import Progress, resume, save
from lab.schedule import advance, optimisers, rate
from lab.shape import Shape

LAST = "chat"  # the kind of text that is made last
HELD_OUT_WINDOWS = 64  # of each kind of text, for a report


@dataclass(frozen=True, slots=True)
class Plan:
    """rows x length tokens a step. joins: the first step with conversations, which may be written until then: without them a
    piece ends there. seconds: a piece ends after so long; None: after all steps. report: steps from one saving, which tells the
    losses, to the next.
    """

    steps: int = 1250
    joins: int = 300
    rows: int = 64
    length: int = 1024
    dropout: float = 0.1
    seed: int = 0
    seconds: float | None = None
    report: int = 100


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats of each token given those before it; windows [B, T + 1]."""
    with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.is_cuda):
        logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(
    model: nn.Module, ids: Ids, plan: Plan, device: torch.device, count: int | None = None
) -> float:
    """Over `count` windows of a text, all for None (`lab.batches.spread`)."""
    rows = torch.from_numpy(spread(ids, plan.length, count)).to(device)
    model.eval()
    losses = [float(loss_of(model, part)) * len(part) for part in rows.split(plan.rows)]
    model.train()
    return sum(losses) / len(rows)


def train(work: Path, shape: Shape, plan: Plan, device: torch.device) -> tuple[LabModel, Progress]:
    """The model after all steps, or after as many as the time allowed: `Progress.step` says."""
    torch.manual_seed(plan.seed)
    model = LabModel(shape, plan.dropout).to(device)
    chosen, path = optimisers(model), work / f"model-{plan.seed}.pt"
    progress = resume(path, model, chosen)
    first, later = _windows(work, plan)
    steps = plan.steps if later else min(plan.steps, plan.joins)
    held_out, started, recent = streams(work, "held-out"), time.monotonic(), []
    while progress.step < steps and not (plan.seconds and time.monotonic() - started > plan.seconds):
        torch.manual_seed(plan.seed * 1_000_003 + progress.step + 1)  # what is dropped is the step's
        windows = later if later and progress.step >= plan.joins else first
        loss = loss_of(model, torch.from_numpy(windows.of_step(progress.step, plan.rows)).to(device))
        loss.backward()
        advance(model, chosen, rate(progress.step, plan.steps))
        recent.append(loss.detach())
        progress.step += 1
        if progress.step % plan.report == 0 or progress.step == steps:
            outside = {kind: held_out_loss(model, ids, plan, device, HELD_OUT_WINDOWS) for kind, ids in held_out.items()}
            _note(progress, float(torch.stack(recent).mean()), outside, time.monotonic() - started)
            save(path, model, chosen, progress)
            recent.clear()
    save(path, model, chosen, progress)
    return model, progress


def _windows(work: Path, plan: Plan) -> tuple[Windows, Windows | None]:
    """Of the steps before conversations join, and of the others: None while there are no conversations."""
    tokens = streams(work, "train")
    without = {kind: ids for kind, ids in tokens.items() if kind != LAST} or tokens
    later = Windows(tokens, plan.length + 1, plan.seed) if LAST in tokens else None
    return Windows(without, plan.length + 1, plan.seed), later


def _note(progress: Progress, loss: float, outside: dict[str, float], seconds: float) -> None:
    progress.losses.append((progress.step, loss, sum(outside.values()) / len(outside)))
    text = ", ".join(f"{kind} {value:.3f}" for kind, value in outside.items())
    print(f"step {progress.step}: {loss:.3f}; held out: {text}; {seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--joins", type=int, default=Plan().joins, help="steps before conversations, and all without them")
    parser.add_argument("--rows", type=int, default=Plan().rows)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    parser.add_argument("--seconds", type=float, help="end this piece after so long; the next call goes on")
    options = parser.parse_args()
    plan = Plan(options.steps, options.joins, options.rows, seed=options.seed, seconds=options.seconds)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    train(options.work, Shape(), plan, device)


if __name__ == "__main__":
    main()
