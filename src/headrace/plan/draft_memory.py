"""Bytes of what a state slot needs so that its rows may carry drafts.

The ring: two halves of K drafts in every Gated DeltaNet layer, each with its key, delta, summed decay and convolution inputs
(`kernels.gated_delta_verify.Ring`). And how far the sequence is, which only the device knows while drafts are being verified:
its position and its end as int64, whether its message has ended as a byte, pending drafts and the ring's half as int32. And
the newest drafts that a drafter on the device made for it, int64 each, and what each was drawn from (`kernels.sample.odds`): up
to 64 tokens as int32, their probabilities as float32, and their number; whether that is wanted is a byte of the slot.
"""

from __future__ import annotations

from headrace.models.spec import GatedDeltaSpec, ModelSpec
from headrace.plan.dtypes import Dtypes, itemsize, ring_type

ODDS_TOKENS = 64
_PROGRESS_BYTES, _DRAFT_BYTES = 2 * 8 + 1 + 2 * 4 + 1, 8 + ODDS_TOKENS * (4 + 4) + 4


def progress_bytes(drafts: int) -> int:
    """Of one slot, beside its ring."""
    return _PROGRESS_BYTES + drafts * _DRAFT_BYTES


def lookup_bytes(context: int) -> int:
    """Of one slot of drafts by lookup: its tokens as int32, and where its newest ones stood before, int64."""
    return 4 * context + 8


def ring_bytes(spec: ModelSpec, dtypes: Dtypes, drafts: int) -> int:
    """Exactly what `runner.pools` allocates as rings for one slot."""
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, GatedDeltaSpec)]
    return 2 * drafts * sum(_draft_bytes(mixer, dtypes) for mixer in mixers)


def _draft_bytes(mixer: GatedDeltaSpec, dtypes: Dtypes) -> int:
    kept = mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
    inputs, decays = mixer.conv_channels * itemsize(dtypes.compute), mixer.value_heads * max(4, itemsize(dtypes.compute))
    return kept * itemsize(ring_type(dtypes.compute)) + inputs + decays
