"""What a step's rows need of tables that are kept by slot, in one pass: newest tokens, and page tables brought up to date."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton_on
from headrace.kernels.slot_lookup import reference


def slot_lookup(
    entries: Tensor, updated: Tensor, pages: Tensor, newest: Tensor, slots: Tensor, positions: Tensor, page_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """entries [G, S, W], newest [S], slots [R], positions [T] -> (tokens [R], tables [G, R, W], places [G, T]), all int64.

    First entries.view(-1)[updated] = pages, both [U]; these are entries of `slots`, and one that is named more than once
    has one value. Then tokens = newest[slots] and tables[g] = entries[g, slots]. Rows have equally many tokens: token t, of
    row r = t // (T / R) at positions[t] of its sequence, lies at places[g, t] = page * page_tokens + offset. Slots may repeat.
    """
    if runs_triton_on(entries.device):
        from headrace.kernels.slot_lookup import triton

        return triton.slot_lookup(entries, updated, pages, newest, slots, positions, page_tokens)
    return reference.slot_lookup(entries, updated, pages, newest, slots, positions, page_tokens)
