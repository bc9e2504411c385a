"""Inputs on which every implementation of gated_delta_mix must agree, and the slow formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.causal_conv1d import cases as conv
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_rule import cases as rule
from headrace.kernels.gated_rms_norm import cases as norm
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rows import PackedRows


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    rows: tuple[int, ...]
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 16
    value_dim: int = 16
    width: int = 4

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


CASES = (
    Case("one-token", (1,)),
    Case("decode", (1, 1, 1), key_heads=1, value_heads=3, key_dim=32),
    Case("one-head-each", (1, 1), key_heads=3, value_heads=3, value_dim=24, width=3),
    Case("wide-heads", (1, 1), key_heads=1, value_heads=2, key_dim=128, value_dim=128),
    Case("no-taps", (1, 2), width=1),
    Case("mixed", (1, 70, 1, 3, 1), key_heads=1, value_heads=2, value_dim=12),
    Case("prefill", (65, 2)),
    Case("wide-heads-prefill", (1, 66, 2), key_heads=1, value_heads=3, key_dim=128, value_dim=128),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Well conditioned, as a trained model's are: states that last (dt_bias), and products without far outliers (conv, z)."""
    rng = torch.Generator().manual_seed(sum(map(ord, case.name)))

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    tokens, slots, wide = sum(case.rows), len(case.rows) + 2, accumulation_dtype(dtype)
    values = case.value_heads * case.value_dim
    return {
        "qkvz": torch.cat([draw(tokens, case.channels), 1 + 0.3 * draw(tokens, values)], 1).to(dtype),
        "ab": draw(tokens, 2 * case.value_heads).to(dtype), "conv_weight": 0.5 * draw(case.channels, case.width).to(dtype),
        "a_log": 0.5 * draw(case.value_heads).to(wide), "dt_bias": draw(case.value_heads).to(wide) - 2,
        "norm_weight": 1 + 0.3 * draw(case.value_dim).to(wide), "eps": 1e-6,
        "tails": draw(slots, case.width - 1, case.channels).to(dtype),
        "states": draw(slots, case.value_heads, case.value_dim, case.key_dim).to(wide),
        "slots": torch.randperm(slots, generator=rng)[: len(case.rows)], "rows": case.rows,
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    weights = MixWeights(*(given[name] for name in ("conv_weight", "a_log", "dt_bias", "norm_weight", "eps")))
    rows = PackedRows(given["rows"], given["qkvz"].device)
    out = op.gated_delta_mix(given["qkvz"], given["ab"], weights, given["tails"], given["states"], given["slots"], rows)
    return out, given["tails"], given["states"]


def slow(
    *, qkvz: Tensor, ab: Tensor, conv_weight: Tensor, a_log: Tensor, dt_bias: Tensor, norm_weight: Tensor, eps: float,
    tails: Tensor, states: Tensor, slots: Tensor, rows: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """The three slow formulas, in float64 all through."""
    tokens, (channels, _), (_, heads, value_dim, key_dim) = len(qkvz), conv_weight.shape, states.shape
    qkv, tails = conv.slow(x=qkvz[:, :channels], weight=conv_weight, tails=tails, slots=slots, rows=rows)
    keys = (channels - heads * value_dim) // 2
    q, k = (x.view(tokens, -1, key_dim) for x in (qkv[:, :keys].contiguous(), qkv[:, keys : 2 * keys].contiguous()))
    v, a, b = qkv[:, 2 * keys :].reshape(tokens, heads, value_dim), ab[:, :heads], ab[:, heads:]
    y, states = rule.slow(q=q, k=k, v=v, a=a, b=b, a_log=a_log, dt_bias=dt_bias, states=states, slots=slots, rows=rows)
    (out,) = norm.slow(x=y, gate=qkvz[:, channels:].reshape(y.shape), weight=norm_weight, eps=eps)
    return out.flatten(1), tails, states
