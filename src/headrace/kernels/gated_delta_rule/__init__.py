"""The gated delta rule: a recurrent state per value head that decays, forgets along its key and learns the new value."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.gated_delta_rule import reference
from headrace.kernels.rows import PackedRows


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    states: Tensor,
    slots: Tensor,
    rows: PackedRows,
) -> Tensor:
    """q, k [T, HK, DK], v [T, HV, DV], a, b [T, HV], a_log, dt_bias [HV] -> o [T, HV, DV] as v.

    For each token of a row, in order, and each value head h with key head h // (HV / HK):
        q <- q / sqrt(sum q^2 + 1e-6) / sqrt(DK),  k <- k / sqrt(sum k^2 + 1e-6)
        g = -exp(a_log) softplus(a + dt_bias),  beta = sigmoid(b)
        S <- exp(g) S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q      (S [DK, DV], read after its update)
    A row starts from states[slots[r]] ([slots, HV, DV, DK]: S transposed, as the kernels read it) and leaves its last S
    there, in the pool's type. slots [R] int64, distinct. Source: Yang et al., "Gated Delta Networks" (2024), as Qwen3.5
    computes it.
    """
    if runs_triton(v):
        from headrace.kernels.gated_delta_rule import triton

        return triton.gated_delta_rule(q, k, v, a, b, a_log, dt_bias, states, slots, rows)
    return reference.gated_delta_rule(q, k, v, a, b, a_log, dt_bias, states, slots, rows)
