"""Gated DeltaNet: a linear-attention mixer with one recurrent state per value head."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import Tensor, nn

from headrace.kernels.gated_delta_mix import MixWeights, gated_delta_mix
from headrace.kernels.gated_delta_verify import fold, forms_of, gated_delta_verify
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rms_norm import Activations
from headrace.layers.batch import Deferred, Pools
from headrace.layers.linear import Linear, empty_parameter
from headrace.layers.step import Step
from headrace.models.spec import GatedDeltaSpec


class GatedDelta(nn.Module):
    """x [T, hidden] -> what `out` is to project, [T, values]; rows' states and convolution tails in the layer's pools move on.

    `qkvz` holds the rows of q, k, v (which the convolution mixes) and of the output gate z; `ab` those of the decay and of
    the learning rate. What steers the decay is kept in float32 or better. index: of the layer, in the pools.
    """

    def __init__(
        self, spec: GatedDeltaSpec, hidden: int, index: int, *, eps: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.index, self.eps = index, eps
        wide = accumulation_dtype(dtype)
        values = spec.value_heads * spec.value_dim
        self.qkvz = Linear(hidden, spec.conv_channels + values, dtype=dtype, device=device)
        self.ab = Linear(hidden, 2 * spec.value_heads, dtype=dtype, device=device)
        self.out = Linear(values, hidden, dtype=dtype, device=device)
        taps = torch.empty((spec.conv_width, spec.conv_channels), dtype=dtype, device=device)
        self.conv_weight = nn.Parameter(taps.T, requires_grad=False)  # [channels, width], channels side by side as in x
        self.a_log = empty_parameter((spec.value_heads,), wide, device)
        self.dt_bias = empty_parameter((spec.value_heads,), wide, device)
        self.norm_weight = empty_parameter((spec.value_dim,), wide, device)

    def forward(self, x: Activations, step: Step) -> Tensor:
        tails, states = step.pools.conv_tails[self.index], step.pools.states[self.index]
        assert tails is not None and states is not None
        (qkvz, ab), deferred = self.qkvz.beside(x, self.ab), step.batch.deferred
        if deferred is not None:
            return self._deferred(qkvz, ab, tails, states, step, deferred)
        return gated_delta_mix(qkvz, ab, self._weights(), tails, states, step.batch.slots, step.rows)

    def forms(self, tokens: int) -> tuple[Hashable, ...]:
        """What a number of tokens decides of the kernels of each linear layer: those of equal answers are the same."""
        return self.qkvz.form_of(tokens, beside=self.ab), self.ab.form_of(tokens), self.out.form_of(tokens)

    def row_forms(self, pools: Pools) -> Callable[[int, int], tuple[Hashable, ...]] | None:
        """The same of what verifies rows: of how many there are, and how many tokens the longest has. None if nothing does."""
        tails, states = pools.conv_tails[self.index], pools.states[self.index]
        ring = pools.rings[self.index] if pools.rings else None
        assert tails is not None and states is not None
        return None if ring is None else partial(forms_of, tails, states, ring)

    def reads_pending(self) -> bool:
        return self.qkvz.reads_pending(beside=self.ab)

    def _weights(self) -> MixWeights:
        return MixWeights(self.conv_weight, self.a_log, self.dt_bias, self.norm_weight, self.eps)

    def _deferred(self, qkvz: Tensor, ab: Tensor, tails: Tensor, states: Tensor, step: Step, deferred: Deferred) -> Tensor:
        """Short rows with their drafts through the ring, which is left to the caller to advance; longer rows as prompts."""
        batch, ring, pending, parity = step.batch, step.pools.rings[self.index], step.pools.pending, step.pools.parity
        assert ring is not None and pending is not None and parity is not None
        rows, tokens, parts = deferred.short_rows, deferred.short_tokens, []
        if rows:
            parts.append(gated_delta_verify(
                qkvz[:tokens], ab[:tokens], self._weights(), tails, states, ring, pending, parity, batch.slots[:rows],
                batch.row_offsets[: rows + 1], deferred.certain[:rows], max(batch.host_row_tokens[:rows]),
            ))
        if rows < len(batch.slots):
            long = deferred.long_slots
            if deferred.folds:
                fold(tails, states, ring, parity, long, pending[long], long)
            parts.append(gated_delta_mix(qkvz[tokens:], ab[tokens:], self._weights(), tails, states, long, step.rows))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
