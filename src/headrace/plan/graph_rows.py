"""Which numbers of rows a decode step is captured for, and how much memory the captured graphs take."""

from __future__ import annotations

from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes, itemsize

LAYER_NODES = 20
NODE_BYTES = 8192

_SMALL = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_STEP = 32
"""Beyond the small sizes; a step's cost grows little within one."""


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Rising sizes, the last of them max_rows: a step of R rows runs as the first that is R or more."""
    sizes = (*_SMALL, *range(_SMALL[-1] + _STEP, max_rows + _STEP, _STEP))
    return (*(size for size in sizes if size < max_rows), max_rows)


def bucket_of(rows: int, buckets: tuple[int, ...]) -> int | None:
    """The size that a step of `rows` rows runs as; None when there is none so large."""
    return next((size for size in buckets if size >= rows), None)


def graph_bytes(spec: ModelSpec, dtypes: Dtypes, max_rows: int) -> int:
    """Device memory of the graphs of steps of up to max_rows rows.

    The buffer of logits (float32 or wider), the scores that it is made of, and the activations of the largest step, which
    all graphs share; and what the driver keeps of every node, measured: NODE_BYTES for each of about LAYER_NODES a layer.
    """
    wide, narrow = max(4, itemsize(dtypes.compute)), itemsize(dtypes.compute)
    logits = max_rows * spec.vocab_size * (wide + narrow)
    activations = max_rows * (8 * spec.hidden + max(3 * layer.mlp.intermediate for layer in spec.layers)) * wide
    nodes = len(row_buckets(max_rows)) * len(spec.layers) * LAYER_NODES
    return logits + activations + nodes * NODE_BYTES
