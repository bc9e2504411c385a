"""Gated DeltaNet between its projections for rows with drafts: states move on by what is certain, and drafts wait in a ring.

A slot is S and the convolution tail at a position p, a ring of drafts behind p, how many of those are accepted (`pending`), and
which half of the ring they lie in (`parity`). A step folds the pending drafts into S, adds the row's certain tokens and writes
S once; then it runs the row's drafts from there without writing S, and leaves only them in the ring's other half. So S is read
once and written once however many drafts there are, and a step without drafts leaves the ring empty.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.gated_delta_mix.weights import MixWeights
from headrace.kernels.gated_delta_verify import reference
from headrace.kernels.gated_delta_verify.ring import MAX_TOKENS, Ring

__all__ = ["MAX_TOKENS", "PRIMITIVES", "Ring", "advance", "fold", "forms_of", "gated_delta_verify"]

PRIMITIVES = Path(__file__).parent / "primitives.cuh"
"""Of all CUDA kernels of the gated delta rule, after those of every kernel."""


def gated_delta_verify(
    qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, ring: Ring, pending: Tensor, parity: Tensor,
    slots: Tensor, offsets: Tensor, certain: Tensor, longest: int = MAX_TOKENS,
) -> Tensor:
    """gated_delta_mix for rows of c certain tokens followed by k drafts, 1 <= c + k <= MAX_TOKENS, k <= K -> [T, HV DV].

    Row r has tokens offsets[r] ... offsets[r + 1] (int32 [R + 1]), of which the first certain[r] (int32 [R]) are certain;
    tokens behind the last row's are left undefined. slots int64 [R], distinct. pending, parity int32 [slots] are
    of all layers together: this reads them only, see `advance`. longest: no row has more tokens; a bound for speed.

    Where values are rounded: S to its pool's type after the pending drafts are folded and again after the certain tokens, and
    each time it goes on from what was rounded; a draft's k, d and summed g to the ring's types, and they are used so. Hence
    fold and a step give the bits of the step alone, and S moves on later by what its drafts were verified with. What lies in
    the ring beyond `pending` is never used, be it NaN.
    """
    way = _implementation(tails, states, ring)
    result: Tensor = way.gated_delta_verify(
        qkvz, ab, weights, tails, states, ring, pending, parity, slots, offsets, certain, longest
    )
    return result


def fold(
    tails: Tensor, states: Tensor, ring: Ring, parity: Tensor, source: Tensor, count: Tensor, target: Tensor
) -> None:
    """Writes S and tail of slots source[i] after the first count[i] drafts of their rings to slots target[i].

    source, target int64 [N], count int32 [N]; target[i] may be source[i], whose pending count is then 0, but no other's source.
    """
    _implementation(tails, states, ring).fold(tails, states, ring, parity, source, count, target)


def advance(pending: Tensor, parity: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """Once all layers have run a step: accepted[r] (int32 [R]) of row r's drafts are pending in the half that was written."""
    pending.index_copy_(0, slots, accepted)
    parity.index_copy_(0, slots, 1 - parity[slots])


def forms_of(tails: Tensor, states: Tensor, ring: Ring, rows: int, longest: int) -> tuple[Hashable, ...]:
    """What numbers of rows, and of tokens of the longest, decide of a step's kernel: those of equal answers have the same."""
    from headrace.kernels.gated_delta_verify import cuda

    return (cuda.form_of(tails, states, ring, rows, longest),) if _implementation(tails, states, ring) is cuda else ()


def _implementation(tails: Tensor, states: Tensor, ring: Ring) -> ModuleType:
    """One for a layer's memory, whatever a call is. float32 is for comparing: it stays with the definition."""
    if not runs_triton(tails) or tails.dtype == torch.float32:
        return reference
    from headrace.kernels.gated_delta_verify import cuda

    if cuda.suits(tails, states, ring):
        return cuda
    from headrace.kernels.gated_delta_verify import triton

    return triton
