"""Where q, k, v, z, a and b lie in the outputs of the projections."""

from __future__ import annotations

from torch import Tensor


def split_qkv(qkv: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[T, C] -> q, k [T, HK, DK], v [T, HV, DV], views. states [slots, HV, DV, DK] tells the sizes."""
    _, heads, value_dim, key_dim = states.shape
    keys = qkv.shape[1] - heads * value_dim
    q, k = qkv[:, :keys].view(len(qkv), -1, key_dim).chunk(2, 1)
    return q, k, qkv[:, keys:].view(-1, heads, value_dim)


def split_gates(ab: Tensor) -> tuple[Tensor, Tensor]:
    """[T, 2 HV] -> a, b [T, HV], views."""
    a, b = ab.chunk(2, 1)
    return a, b
