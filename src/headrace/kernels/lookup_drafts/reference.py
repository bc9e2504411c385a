"""The definition of lookup_drafts in plain PyTorch. Waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels import lookup_drafts


def remember(
    history: Tensor, matches: Tensor, slots: Tensor, offsets: Tensor, tokens: Tensor, starts: Tensor, kept: Tensor,
    next_tokens: Tensor,
) -> None:
    rows = zip(slots.tolist(), offsets.tolist(), starts.tolist(), kept.tolist(), strict=False)
    for slot, begin, start, count in rows:
        if slot < len(history) - 1:
            known = torch.cat([tokens[begin : begin + count], next_tokens[slot : slot + 1]])
            history[slot, start : start + len(known)] = known.int()
            matches[slot] = 0


def find_matches(history: Tensor, matches: Tensor, slots: Tensor, starts: Tensor, kept: Tensor, shortest: int) -> None:
    for slot, length in zip(slots.tolist(), (starts + kept + 1).tolist(), strict=True):
        if slot < len(history) - 1:
            matches[slot] = _match(history[slot, :length], shortest)


def _match(tokens: Tensor, shortest: int) -> int:
    newest = len(tokens) - 1
    ends, best = torch.arange(newest, device=tokens.device), 0  # of last tokens
    for length in range(1, lookup_drafts.LONGEST + 1):
        ends = ends[ends >= length - 1]
        ends = ends[tokens[ends - length + 1] == tokens[newest - length + 1]]
        if not len(ends):
            break
        if length >= shortest:
            best = (length << 32) + int(ends[-1]) + 1
    return best


def continuations(history: Tensor, matches: Tensor, slots: Tensor, lengths: Tensor, most: int) -> Tensor:
    found, place = matches[slots], torch.arange(most, device=slots.device)
    begins = (found & 0xFFFFFFFF)[:, None]
    at = begins + place % (lengths[:, None] - begins).clamp(min=1)
    there = found[:, None] > 0
    return torch.where(there, history[slots[:, None], torch.where(there, at, 0)].long(), 0)
