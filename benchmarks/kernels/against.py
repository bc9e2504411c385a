"""What drafts with odds cost beside drafts and draws without: `PYTHONPATH=src:. python benchmarks/kernels/against.py` on a GPU.

Rows of 8 tokens, seven of them drafts, in slices as verification has them, and the draw of one draft of each row. Medians of
CUDA graph replays that walk over copies of the logits; floor: logits read once at 3.9 TB/s. Rows without a draft that is known
are what an engine with a drafter has for requests with seeds, and greedy ones.
"""

from __future__ import annotations

import torch
from benchmarks.kernels.small import VOCAB, copies_of, report
from torch import Tensor

from headrace.kernels.ahead import compiling_ahead
from headrace.kernels.sample import Against, Odds, SlotState, draw_drafts, draw_on_device
from headrace.plan.workspace import LOGIT_ROWS

TOKENS, DRAFTS = 8, 7
SAMPLED = {
    "top_k 20, top_p .95": (1.0, 20, 0.95), "temperature 1": (1.0, 0, 1.0), "top_p .95": (1.0, 0, 0.95),
    "greedy": (0.0, 0, 1.0),
}


class Step:
    """rows of TOKENS tokens each."""

    def __init__(self, rows: int) -> None:
        self.rows, device = rows, torch.device("cuda")
        self.state, self.odds = SlotState.allocate(rows, VOCAB, device), Odds.allocate(rows, DRAFTS, device)
        places = min(rows * TOKENS, LOGIT_ROWS)
        self.slices = range(0, rows * TOKENS, places)
        self.slots = torch.arange(rows, device=device)
        self.place_slots = self.slots.repeat_interleave(TOKENS)
        self.positions = torch.arange(TOKENS, device=device).repeat(rows) + 1
        n = copies_of(places * VOCAB * 2)
        said = (torch.randn(places, VOCAB, device=device) * 5).bfloat16()
        self.logits = [said.clone() for _ in range(n)]
        self.proposed = [(torch.randn(rows, VOCAB, device=device) * 5).bfloat16() for _ in range(copies_of(rows * VOCAB * 2))]
        self.drafts = torch.zeros(rows * TOKENS, dtype=torch.int64, device=device)
        self.places = (self.positions - 1).where(self.positions < TOKENS, -1)

    def set(self, temperature: float, top_k: int, top_p: float) -> None:
        self.state.integers[:, 1], self.state.numbers[:, 0], self.state.numbers[:, 1] = top_k, temperature, top_p

    def draft(self, i: int, place: int = 0) -> Tensor:
        return draw_drafts(self.proposed[i], self.state, self.slots, self.slots * 0 + 1 + place, self.odds, place)

    def plain_draft(self, i: int) -> Tensor:
        return draw_on_device(self.proposed[i], self.state, self.slots, self.slots * 0 + 1)

    def propose(self, near: bool) -> None:
        """Odds and drafts of all places: of the target's own logits, or of others."""
        size = len(self.logits[0])
        for place in range(DRAFTS):
            at = torch.arange(self.rows, device="cuda") * TOKENS + place
            logits = self.logits[0][at % size] if near else self.proposed[place % len(self.proposed)]
            self.drafts[at] = draw_drafts(logits, self.state, self.slots, self.slots * 0 + 1 + place, self.odds, place)

    def verify(self, i: int, known: bool = True, *, with_odds: bool = True) -> None:
        n, size = len(self.logits), len(self.logits[0])
        for number, first in enumerate(self.slices):
            part = slice(first, first + size)
            places = self.places[part] if known else torch.full_like(self.places[part], -1)
            against = Against(self.odds, self.drafts[part], places) if with_odds else None
            draw_on_device(
                self.logits[(i + number) % n], self.state, self.place_slots[part], self.positions[part], against=against
            )


def compare(step: Step, name: str) -> None:
    step.set(*SAMPLED[name])
    rows = step.rows
    for free in (False, True):
        step.odds.free.fill_(free)
        ways = {"with odds": step.draft} | ({} if free else {"plain": step.plain_draft})
        report(f"{name}: a draft, {'free' if free else 'seeded'}", rows, rows * VOCAB * 2, ways, len(step.proposed))
    moved = rows * TOKENS * VOCAB * 2
    plain = {
        "plain": lambda i: step.verify(i, with_odds=False), "no draft known": lambda i: step.verify(i, known=False)
    }
    report(f"{name}: {TOKENS} tokens a row", rows, moved, plain, len(step.logits))
    if step.state.numbers[0, 0] > 0:
        for near in (True, False):
            step.propose(near)
            kind = "near" if near else "far"
            report(f"{name}: {TOKENS} tokens a row", rows, moved, {f"against {kind} drafts": step.verify}, len(step.logits))


def compile_all() -> None:
    with compiling_ahead():
        step = Step(1)
        step.draft(0)
        step.verify(0)
        step.verify(0, with_odds=False)


def main() -> None:
    compile_all()
    for rows in (64, 8, 1):
        step = Step(rows)
        for name in SAMPLED:
            compare(step, name)


if __name__ == "__main__":
    main()
