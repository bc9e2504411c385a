"""What masks of allowed tokens cost beside the draw: `PYTHONPATH=src:. python benchmarks/kernels/masks.py` on a GPU.

Medians of CUDA graph replays that walk over copies of the logits. `no mask` is an engine that has masks, in a step in which no
row has one. Floor of the mask alone: logits read and written, and its bits read, at 3.9 TB/s; of a draw: logits read once.
"""

from __future__ import annotations

import torch
from benchmarks.kernels.small import VOCAB, Step, copies_of, report

from headrace.kernels.forbid_tokens import TokenMasks, forbid_tokens
from headrace.kernels.sample import SlotState, draw_on_device

SHARES = {"1 in 1,000": 0.001, "half": 0.5}
"""Of the vocabulary that is allowed."""


def compare(rows: int, share: float, name: str) -> None:
    device = torch.device("cuda")
    state, masks = SlotState.allocate(rows, VOCAB, device), TokenMasks.allocate(rows, 1, VOCAB, device)
    state.integers[:, 1], state.numbers[:, 0], state.numbers[:, 1] = 20, 1.0, 0.95
    moved = rows * VOCAB * 2
    n = copies_of(moved)
    logits = [(torch.randn(rows, VOCAB, device=device) * 2.5).bfloat16() for _ in range(n)]
    slots, positions = torch.arange(rows, device=device), torch.full((rows,), 7, device=device)
    bits = torch.rand(rows, masks.words.shape[1], 32, device=device) < share
    masks.words.copy_((bits.long() << torch.arange(32, device=device)).sum(2).int())

    def place(mask: bool) -> None:
        masks.places[:, 0], masks.places[:, 1] = 7, torch.arange(rows, device=device) if mask else -1

    def forbid(i: int) -> None:
        forbid_tokens(logits[i], slots, positions, masks)

    def draw(i: int) -> None:
        draw_on_device(logits[i], state, slots, positions)

    def both(i: int) -> None:
        forbid(i)
        draw(i)

    ways: dict[str, Step] = {"draw": draw}
    place(False)
    report(name, rows, moved, {**ways, "no mask": both}, n)
    place(True)
    report(name, rows, 2 * moved + masks.words.nbytes, {"mask alone": forbid}, n)
    report(name, rows, moved, {"masked draw": both, **ways}, n)


if __name__ == "__main__":
    torch.manual_seed(0)
    for share_name, share in SHARES.items():
        for rows in (1, 8, 64, 256):
            compare(rows, share, share_name)
