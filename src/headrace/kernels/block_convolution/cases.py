"""Inputs on which every implementation of block_convolution must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """part: change is the second half of a larger tensor."""

    name: str
    blocks: int
    block: int
    taps: int
    groups: int
    group: int
    part: bool = False


CASES = (
    Case("one", 1, 2, 1, 1, 1), Case("published", 3, 8, 2, 9, 16, part=True), Case("odd", 2, 5, 3, 3, 7),
    Case("wide", 2, 3, 2, 130, 16, part=True), Case("more-taps-than-tokens", 2, 2, 4, 2, 3), Case("none", 0, 8, 2, 2, 4),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.blocks + case.group)
    tokens, channels = case.blocks * case.block, case.groups * case.group
    change = torch.randn(tokens, 2, case.taps, case.groups, generator=rng).to(dtype)
    return {
        "x": torch.randn(tokens, channels, generator=rng).to(dtype),
        "base": torch.randn(case.taps, channels, generator=rng).to(dtype),
        "change": change[:, 1] if case.part else change[:, 1].contiguous(), "block": case.block,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    return (op.block_convolution(**given),)


def slow(*, x: Tensor, base: Tensor, change: Tensor, block: int) -> tuple[Tensor, ...]:
    x, base, change = x.double(), base.double(), change.double()
    out, group = torch.zeros_like(x), x.shape[1] // change.shape[2]
    for t in range(x.shape[0]):
        for c in range(x.shape[1]):
            for w in range(min(base.shape[0], t % block + 1)):
                out[t, c] += (base[w, c] + change[t, w, c // group]) * x[t - w, c]
    return (out,)
