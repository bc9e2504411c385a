"""Inputs on which every implementation of kv_write must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    tokens: int
    pages: int
    page_tokens: int


CASES = (Case("one", 1, 2, 1), Case("scattered", 9, 5, 3), Case("full", 32, 2, 16))


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(case.tokens)
    k, v = (torch.randn(case.tokens, 3, 8, generator=rng).to(dtype) for _ in range(2))
    keys, values = (torch.randn(case.pages, case.page_tokens, 3, 8, generator=rng).to(dtype) for _ in range(2))
    write_at = torch.randperm(case.pages * case.page_tokens, generator=rng)[: case.tokens]
    return {"k": k, "v": v, "keys": keys, "values": values, "write_at": write_at}


def slow(*, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, write_at: Tensor) -> tuple[Tensor, ...]:
    written = []
    for new, pool in ((k, keys), (v, values)):
        pool = pool.double().clone()
        for token, place in zip(new, write_at.tolist(), strict=True):
            pool[place // pool.shape[1], place % pool.shape[1]] = token.double()
        written.append(pool)
    return tuple(written)


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    op.kv_write(**given)
    return given["keys"], given["values"]
