"""The definition of gated_delta_verify and of fold in plain PyTorch: row by row and token by token. Waits for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from headrace.kernels.gated_delta_mix.split import split_gates, split_qkv
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_rule.reference import unit
from headrace.kernels.gated_delta_verify.ring import MAX_TOKENS, Ring
from headrace.kernels.gated_rms_norm.reference import gated_rms_norm
from headrace.kernels.precision import accumulation_dtype


@dataclass(frozen=True, slots=True)
class _Drafts:
    """One half of one slot's ring: keys [K, HK, DK], deltas [K, HV, DV], decays [K, HV], inputs [K, C]."""

    keys: Tensor
    deltas: Tensor
    decays: Tensor
    inputs: Tensor


def _half(ring: Ring, slot: int, half: int) -> _Drafts:
    return _Drafts(*(x[slot, half] for x in (ring.keys, ring.deltas, ring.decays, ring.inputs)))


def gated_delta_verify(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, ring: Ring, pending: Tensor, parity: Tensor,
    slots: Tensor, offsets: Tensor, certain: Tensor, longest: int = MAX_TOKENS,
) -> Tensor:
    channels = weights.conv.shape[0]
    out = torch.zeros((len(qkvz), states.shape[1] * states.shape[2]), dtype=qkvz.dtype, device=qkvz.device)
    ends = offsets.tolist()
    for slot, sure, begin, end in zip(slots.tolist(), certain.tolist(), ends[:-1], ends[1:], strict=True):
        half, count = int(parity[slot]), int(pending[slot])
        old, new = _half(ring, slot, half), _half(ring, slot, 1 - half)
        x = qkvz[begin:end, :channels]
        mixed = _convolve(x, weights.conv, tails[slot], old.inputs[:count], sure)
        new.inputs[: len(x) - sure] = x[sure:]
        y = _advance_state(mixed, ab[begin:end], weights, states[slot], old, count, new, sure)
        z = qkvz[begin:end, channels:].view(y.shape)
        out[begin:end] = gated_rms_norm(y, z.to(y.dtype), weights.norm, weights.eps).flatten(1)
    return out


def _convolve(x: Tensor, weight: Tensor, tail: Tensor, drafts: Tensor, sure: int) -> Tensor:
    """x [n, C] behind a tail [W - 1, C] and accepted drafts' inputs -> [n, C] in float32 or better; moves the tail on."""
    wide = accumulation_dtype(x.dtype)
    width = weight.shape[1]
    inputs = torch.cat([tail.to(wide), drafts.to(wide), x.to(wide)])
    first = len(inputs) - len(x)  # of x
    taps = weight.to(wide).T  # [W, C]
    total = sum(inputs[first - width + 1 + w : len(inputs) - width + 1 + w] * taps[w] for w in range(width))
    tail.copy_(inputs[first + sure - width + 1 : first + sure])
    return silu(torch.as_tensor(total))


def _advance_state(
    mixed: Tensor, ab: Tensor, weights: MixWeights, state: Tensor, old: _Drafts, count: int, new: _Drafts, sure: int
) -> Tensor:
    """mixed [n, C] -> o [n, HV, DV]. state [HV, DV, DK] is replaced, and the drafts' part of `new` written."""
    wide = mixed.dtype
    q, k, v = split_qkv(mixed, state[None])
    ratio = v.shape[1] // k.shape[1]
    q, k = unit(q) * q.shape[2] ** -0.5, unit(k)
    k[sure:] = k[sure:].to(new.keys.dtype).to(wide)
    new.keys[: len(k) - sure] = k[sure:]
    q, k = q.repeat_interleave(ratio, 1), k.repeat_interleave(ratio, 1)
    a, b = split_gates(ab.to(wide))
    g, beta = -weights.a_log.to(wide).exp() * softplus(a + weights.dt_bias.to(wide)), b.sigmoid()
    s = _folded(state, old, count)
    outputs, summed = [], torch.zeros_like(g[0])
    for t in range(len(mixed)):
        if t == sure:
            s = _rounded(s, state)
        s = s * g[t].exp()[:, None, None]
        d = beta[t][:, None] * (v[t] - (s @ k[t][:, :, None])[..., 0])  # [HV, DV]
        if t >= sure:
            d, summed = d.to(new.deltas.dtype).to(wide), summed + g[t]
            new.deltas[t - sure], new.decays[t - sure] = d, summed
        s = s + d[:, :, None] * k[t][:, None, :]
        outputs.append((s @ q[t][:, :, None])[..., 0])
    if len(mixed) == sure:
        _rounded(s, state)
    return torch.stack(outputs)


def _rounded(s: Tensor, state: Tensor) -> Tensor:
    """Stores s in state's type, and goes on with what was stored."""
    state.copy_(s)
    return state.to(s.dtype)


def _folded(state: Tensor, drafts: _Drafts, count: int) -> Tensor:
    """S^T [HV, DV, DK] after `count` drafts, in float32 or better, rounded to state's type:

    e^{G_n} S + sum_j e^{G_n - G_j} k_j d_j^T, with G the summed g.
    """
    s = state.to(accumulation_dtype(state.dtype))
    if not count:
        return s
    ratio = state.shape[0] // drafts.keys.shape[1]
    keys = drafts.keys[:count].to(s.dtype).repeat_interleave(ratio, 1)
    deltas, decays = drafts.deltas[:count].to(s.dtype), drafts.decays[:count].to(s.dtype)
    weighted = (decays[-1] - decays).exp()[:, :, None] * deltas  # [n, HV, DV]
    s = decays[-1].exp()[:, None, None] * s + torch.einsum("nhv,nhk->hvk", weighted, keys)
    return s.to(state.dtype).to(s.dtype)


def fold(
    tails: Tensor, states: Tensor, ring: Ring, parity: Tensor, source: Tensor, count: Tensor, target: Tensor
) -> None:
    for src, n, dst in zip(source.tolist(), count.tolist(), target.tolist(), strict=True):
        drafts = _half(ring, src, int(parity[src]))
        tails[dst] = torch.cat([tails[src], drafts.inputs[:n].to(tails.dtype)])[n:]
        states[dst] = _folded(states[src], drafts, n).to(states.dtype)
