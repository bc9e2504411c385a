"""Inputs on which every implementation of forbid_tokens must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.forbid_tokens.masks import TokenMasks


@dataclass(frozen=True, slots=True)
class Case:
    """places: of each slot. masked: the share of places that have a mask."""

    name: str
    rows: int
    vocab: int
    places: int = 1
    masked: float = 0.7


CASES = (
    Case("one", 1, 1, masked=1.0),
    Case("none", 5, 40, masked=0.0),
    Case("word", 3, 32, masked=1.0),
    Case("odd", 9, 1_003, places=4),
    Case("tiles", 4, 9_000, places=8),
    Case("wide", 2, 248_320, places=2),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Rows before their slots' places and behind them, and at each of them; masks that two places share, and empty ones."""
    rng = torch.Generator().manual_seed(case.rows + case.vocab)
    slots, masks = case.rows + 2, case.rows * case.places
    places = torch.randint(0, masks, (slots, case.places), generator=rng)
    places[torch.rand(slots, case.places, generator=rng) >= case.masked] = -1
    begins = torch.randint(1, 500, (slots, 1), generator=rng)
    used = torch.randperm(slots, generator=rng)[: case.rows]
    offsets = torch.randint(-1, case.places + 1, (case.rows,), generator=rng) if case.places > 1 else 0
    words = torch.randint(-(2**31), 2**31, (masks, -(-case.vocab // 32)), generator=rng)
    words[0], words[-1, ::2] = -1, 0
    return {
        "logits": torch.randn(case.rows, case.vocab, generator=rng).to(dtype), "slots": used,
        "positions": begins[used, 0] + offsets, "places": torch.cat([begins, places], 1), "words": words.int(),
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """The logits that are left, and which are not."""
    logits = given["logits"].clone()
    op.forbid_tokens(logits, given["slots"], given["positions"], TokenMasks(given["places"], given["words"]))
    return _told(logits)


def slow(*, logits: Tensor, slots: Tensor, positions: Tensor, places: Tensor, words: Tensor) -> tuple[Tensor, ...]:
    found = logits.double()
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        begin, *masks = places[slot].tolist()
        mask = masks[position - begin] if 0 <= position - begin < len(masks) else -1
        if mask >= 0:
            number = sum((word % 2**32) << (32 * place) for place, word in enumerate(words[mask].tolist()))
            bits = f"{number:b}"[::-1].ljust(logits.shape[1], "0")
            found[row, [token for token in range(logits.shape[1]) if bits[token] == "0"]] = float("-inf")
    return _told(found)


def _told(logits: Tensor) -> tuple[Tensor, ...]:
    gone = logits.isneginf()
    return logits.masked_fill(gone, 0), gone
