"""Drafts by lookup, on the device: what followed the last time that a sequence's newest tokens stood in it.

history [S, C] int32 holds the tokens of S slots' sequences, the last slot padding, of which nothing is read or written. matches
[S] int64 is what was found in each: the length of the suffix times 2^32, and where what followed begins; 0 for nothing.
"""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from headrace.kernels.dispatch import runs_triton_on
from headrace.kernels.lookup_drafts import reference

LONGEST = 12
"""The most tokens of a suffix that are compared."""


def remember(
    history: Tensor, matches: Tensor, slots: Tensor, offsets: Tensor, tokens: Tensor, starts: Tensor, kept: Tensor,
    next_tokens: Tensor,
) -> None:
    """history[slots[r], starts[r] + i] = tokens[offsets[r] + i] for i < kept[r], and behind them next_tokens[slots[r]]; and
    matches[slots[r]] = 0.

    slots, starts, kept [R], tokens [T], next_tokens [S] int64, offsets [R + 1] int32. No sequence is longer than C tokens.
    Slots but for padding are distinct.
    """
    _implementation(history).remember(history, matches, slots, offsets, tokens, starts, kept, next_tokens)


def find_matches(history: Tensor, matches: Tensor, slots: Tensor, starts: Tensor, kept: Tensor, shortest: int) -> None:
    """Of suffixes of 12, 11, ... `shortest` of a sequence's starts[r] + kept[r] + 1 tokens, the first that stands somewhere
    earlier too, where it may overlap itself; of its places the last: to matches[slots[r]], which were 0.
    """
    _implementation(history).find_matches(history, matches, slots, starts, kept, shortest)


def continuations(history: Tensor, matches: Tensor, slots: Tensor, lengths: Tensor, most: int) -> Tensor:
    """Drafts [R, most] int64: what follows at the matches of sequences of lengths[r] tokens (int64 [R]). Where that runs into
    the end it goes on from the match. Zeros where there is no match.
    """
    found: Tensor = _implementation(history).continuations(history, matches, slots, lengths, most)
    return found


def _implementation(history: Tensor) -> ModuleType:
    if runs_triton_on(history.device):
        from headrace.kernels.lookup_drafts import triton

        return triton
    return reference
