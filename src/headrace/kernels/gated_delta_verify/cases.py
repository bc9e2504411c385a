"""Inputs on which every implementation of gated_delta_verify must agree, and the slow formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.causal_conv1d import cases as conv
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_verify.ring import Ring
from headrace.kernels.gated_rms_norm import cases as norm
from headrace.kernels.precision import accumulation_dtype


@dataclass(frozen=True, slots=True)
class Case:
    """rows: (pending drafts, certain tokens, drafts) of each."""

    name: str
    rows: tuple[tuple[int, int, int], ...]
    depth: int = 7
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 16
    value_dim: int = 16
    width: int = 4

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


CASES = (
    Case("decode", ((0, 1, 0), (0, 1, 0)), key_heads=1, value_heads=3, key_dim=32),
    Case("verify", ((0, 1, 7), (7, 1, 7), (3, 1, 7))),
    Case("no-drafts-after-accepted", ((5, 1, 0),), key_heads=1, value_heads=2),
    Case("uneven", ((2, 1, 3), (0, 1, 0), (1, 4, 2), (7, 1, 1)), value_dim=24, key_heads=1),
    Case("short-chunks", ((2, 16, 0), (0, 9, 7), (6, 2, 0)), key_heads=1, value_heads=2, width=3),
    Case("deep", ((15, 1, 15),), depth=15, key_heads=1, value_heads=1, key_dim=8, value_dim=6),
    Case("no-taps", ((2, 1, 2),), width=1, key_heads=1, value_heads=2),
    Case("wide-heads", ((4, 1, 7), (0, 3, 5)), key_heads=1, value_heads=2, key_dim=128, value_dim=128),
)


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Well conditioned like those of gated_delta_mix. Memory that no operation may read is NaN."""
    rng = torch.Generator().manual_seed(sum(map(ord, case.name)))

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    slots, wide, heads = len(case.rows) + 2, accumulation_dtype(dtype), case.value_heads
    kept = torch.float16 if dtype == torch.bfloat16 else dtype
    tokens = [certain + drafts for _, certain, drafts in case.rows]
    used = torch.randperm(slots, generator=rng)[: len(case.rows)]
    pending, parity = torch.zeros(slots, dtype=torch.int32), torch.randint(0, 2, (slots,), generator=rng, dtype=torch.int32)
    keys = draw(slots, 2, case.depth, case.key_heads, case.key_dim)
    ring = {
        "keys": keys / keys.norm(dim=-1, keepdim=True), "deltas": draw(slots, 2, case.depth, heads, case.value_dim),
        "decays": -draw(slots, 2, case.depth, heads).abs().cumsum(2), "ring_inputs": draw(slots, 2, case.depth, case.channels),
    }
    types = {"decays": wide, "ring_inputs": dtype}
    ring = {name: x.to(types.get(name, kept)) for name, x in ring.items()}
    for slot, (count, _, _) in zip(used.tolist(), case.rows, strict=True):
        pending[slot] = count
        for x in ring.values():
            x[slot, int(parity[slot]), count:] = float("nan")
            x[slot, 1 - int(parity[slot])] = float("nan")
    return ring | {
        "qkvz": torch.cat([draw(sum(tokens), case.channels), 1 + 0.3 * draw(sum(tokens), heads * case.value_dim)], 1).to(dtype),
        "ab": draw(sum(tokens), 2 * heads).to(dtype), "conv_weight": 0.5 * draw(case.channels, case.width).to(dtype),
        "a_log": 0.5 * draw(heads).to(wide), "dt_bias": draw(heads).to(wide) - 2,
        "norm_weight": 1 + 0.3 * draw(case.value_dim).to(wide), "eps": 1e-6,
        "tails": draw(slots, case.width - 1, case.channels).to(dtype),
        "states": draw(slots, heads, case.value_dim, case.key_dim).to(wide), "pending": pending, "parity": parity,
        "slots": used, "offsets": torch.tensor([0, *accumulate(tokens)], dtype=torch.int32),
        "certain": torch.tensor([certain for _, certain, _ in case.rows], dtype=torch.int32),
    }


def run(op: Any, given: dict[str, Any]) -> tuple[Tensor, ...]:
    weights = MixWeights(*(given[name] for name in ("conv_weight", "a_log", "dt_bias", "norm_weight", "eps")))
    ring = Ring(*(given[name] for name in ("keys", "deltas", "decays", "ring_inputs")))
    rest = (given[name] for name in ("pending", "parity", "slots", "offsets", "certain"))
    longest = int(given["offsets"].diff().max())
    out = op.gated_delta_verify(given["qkvz"], given["ab"], weights, given["tails"], given["states"], ring, *rest, longest)
    return out, given["tails"], given["states"], ring.keys, ring.deltas, ring.decays, ring.inputs


def slow(
    *, qkvz: Tensor, ab: Tensor, conv_weight: Tensor, a_log: Tensor, dt_bias: Tensor, norm_weight: Tensor, eps: float,
    tails: Tensor, states: Tensor, keys: Tensor, deltas: Tensor, decays: Tensor, ring_inputs: Tensor, pending: Tensor,
    parity: Tensor, slots: Tensor, offsets: Tensor, certain: Tensor,
) -> tuple[Tensor, ...]:
    """One token and head at a time, in float64 and without any rounding."""
    tails, states, keys, deltas, decays, ring_inputs = (
        x.double().clone() for x in (tails, states, keys, deltas, decays, ring_inputs)
    )
    channels, (_, heads, value_dim, key_dim) = len(conv_weight), states.shape
    key_heads, width = keys.shape[3], conv_weight.shape[1]
    y = torch.empty((len(qkvz), heads, value_dim), dtype=torch.float64)
    for r, slot in enumerate(slots.tolist()):
        begin, end, sure = int(offsets[r]), int(offsets[r + 1]), int(certain[r])
        count, old, new = int(pending[slot]), int(parity[slot]), 1 - int(parity[slot])
        x = qkvz[begin:end, :channels].double()
        history = torch.cat([tails[slot], ring_inputs[slot, old, :count]])
        before, whole = history[len(history) - width + 1 :][None], torch.cat([history, x])
        mixed, _ = conv.slow(x=x, weight=conv_weight, tails=before, slots=torch.tensor([0]), rows=(len(x),))
        tails[slot] = whole[len(history) + sure - width + 1 : len(history) + sure]
        ring_inputs[slot, new, : len(x) - sure] = x[sure:]
        for h in range(heads):
            group = h // (heads // key_heads)
            state, last = states[slot, h].T, 0.0  # [DK, DV]
            for j in range(count):
                state = state * math.exp(float(decays[slot, old, j, h]) - last)
                state = state + torch.outer(keys[slot, old, j, group], deltas[slot, old, j, h])
                last = float(decays[slot, old, j, h])
            summed = 0.0
            for t in range(end - begin):
                if t == sure:
                    states[slot, h] = state.T
                parts = (mixed[t, group * key_dim :][:key_dim], mixed[t, (key_heads + group) * key_dim :][:key_dim])
                query, key = (p / math.sqrt(float(p @ p) + 1e-6) for p in parts)
                value = mixed[t, 2 * key_heads * key_dim + h * value_dim :][:value_dim]
                a, b = float(ab[begin + t, h]), float(ab[begin + t, heads + h])
                g = -math.exp(float(a_log[h])) * math.log1p(math.exp(a + float(dt_bias[h])))
                state = state * math.exp(g)
                d = (value - key @ state) / (1 + math.exp(-b))
                state = state + torch.outer(key, d)
                y[begin + t, h] = query @ state / math.sqrt(key_dim)
                if t >= sure:
                    summed += g
                    at = (slot, new, t - sure)
                    keys[(*at, group)], deltas[(*at, h)], decays[(*at, h)] = key, d, summed
            if sure == end - begin:
                states[slot, h] = state.T
    (out,) = norm.slow(x=y, gate=qkvz[:, channels:].reshape(y.shape), weight=norm_weight, eps=eps)
    return out.flatten(1), tails, states, keys, deltas, decays, ring_inputs
