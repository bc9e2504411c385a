"""Bytes of what a sequence has in its slot."""

from __future__ import annotations

from math import prod

from headrace.cache.layout import state_elements
from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes, itemsize


def state_bytes_per_sequence(spec: ModelSpec, dtypes: Dtypes) -> int:
    """Bytes of one state slot: S in the state type, convolution tails in the activations' type, and what a drafter keeps."""
    s, tails = state_elements(spec)
    types = {"compute": itemsize(dtypes.compute), "kv": itemsize(dtypes.kv), "int64": 8}
    kept = sum(prod(state.shape) * types[state.type] for state in spec.drafter.states) if spec.drafter else 0
    return s * itemsize(dtypes.state) + tails * itemsize(dtypes.compute) + kept
