"""Inputs on which every implementation must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.joined_norms.rows import Before
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rms_norm import NormWeight

SLOTS, VOCABULARY = 7, 20
EPS = (1e-6, 1e-5)


@dataclass(frozen=True, slots=True)
class Case:
    """rows: (tokens, those of them that count) each; without `behind` tokens and hidden states belong together."""

    name: str
    rows: tuple[tuple[int, int], ...]
    hidden: int = 16
    behind: bool = True
    offset: float = 1.0


CASES = (
    Case("one-token", ((1, 1),)),
    Case("decode", ((1, 1),) * 5, hidden=24),
    Case("verify", ((4, 2), (1, 1), (8, 8), (3, 1)), hidden=100),
    Case("prompt", ((70, 70), (1, 1)), hidden=40, offset=0.0),
    Case("nothing-counts", ((3, 0), (2, 1))),
    Case("together", ((5, 5), (1, 1)), behind=False, hidden=33),
    Case("wide", ((2, 1), (1, 1)), hidden=5120),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(sum(map(ord, case.name)))
    tokens, counts = zip(*case.rows, strict=True)
    total, wide = sum(tokens), accumulation_dtype(dtype)
    offsets = torch.tensor([0, *accumulate(tokens)], dtype=torch.int32)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    return {
        "tokens": torch.randint(VOCABULARY, (total,), generator=rng), "table": drawn(VOCABULARY, case.hidden).to(dtype),
        "hidden": drawn(total, case.hidden).to(dtype), "kept": drawn(SLOTS, case.hidden).to(dtype), "row_offsets": offsets,
        "slots": torch.randperm(SLOTS, generator=rng)[: len(tokens)], "counts": torch.tensor(counts),
        "weights": (0.2 * drawn(2, case.hidden) + 1 - case.offset).to(wide), "offset": case.offset, "behind": case.behind,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    norms = [NormWeight(weight.contiguous(), eps, given["offset"]) for weight, eps in zip(given["weights"], EPS, strict=True)]
    before = Before(given["row_offsets"], given["slots"], given["kept"])
    joined = op.joined_norms(given["tokens"], given["table"], given["hidden"], *norms, before if given["behind"] else None)
    op.keep_last(before, given["counts"], given["hidden"])
    return joined, before.kept


def slow(
    *, tokens: Tensor, table: Tensor, hidden: Tensor, kept: Tensor, row_offsets: Tensor, slots: Tensor, counts: Tensor,
    weights: Tensor, offset: float, behind: bool,
) -> tuple[Tensor, ...]:
    """Token by token."""
    def norm(x: Tensor, which: int) -> Tensor:
        x = x.double()
        return x / (x.square().mean() + EPS[which]).sqrt() * (offset + weights[which].double())

    joined, after = [], kept.double().clone()
    for row, slot in enumerate(slots.tolist()):
        begin, end = int(row_offsets[row]), int(row_offsets[row + 1])
        for at in range(begin, end):
            h = hidden[at] if not behind else kept[slot] if at == begin else hidden[at - 1]
            joined.append(torch.cat([norm(table[tokens[at]], 0), norm(h, 1)]))
        after[slot] = hidden[max(0, begin + int(counts[row]) - 1)].double()
    return torch.stack(joined), after
