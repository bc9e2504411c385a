"""Which numbers of rows a decode step is captured for, and how much memory the captured graphs take."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes, itemsize

_LAYER_NODES = 13
_DRAW_NODES = 20
_NODE_BYTES, _DRIVER_BYTES = 3_700, 72 << 20
_LIBRARY_BYTES = 32 << 20
_SEGMENT_BYTES = 20 << 20
"""Measured on an H200 (PyTorch 2.11, driver 580): for 9 graphs of 840 nodes and of 540 the driver keeps 95 and 88 MB, for 16 of
540 and their draws 103 MB; cuBLAS's workspace for the capturing stream, where a product is cuBLAS's; and what PyTorch's
allocator rounds up to."""

_SMALL = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_STEP = 32
"""Beyond the small sizes; a step's cost grows little within one."""
_PROMPT_TOKENS = (8, 16, 32, 64, 96, 128, 256, 384, 512)
_MIXED_TOKENS = 256
_MIXED_ROWS = (8, 64)
_MOST_PROMPTS, _MOST_LONG_PROMPTS = 4, 2


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Rising sizes, the last of them max_rows: a step of R rows runs as the first that is R or more."""
    sizes = (*_SMALL, *range(_SMALL[-1] + _STEP, max_rows + _STEP, _STEP))
    return (*(size for size in sizes if size < max_rows), max_rows)


def bucket_of(rows: int, buckets: tuple[int, ...]) -> int | None:
    """The size that a step of `rows` rows runs as; None when there is none so large."""
    return next((size for size in buckets if size >= rows), None)


@dataclass(frozen=True, slots=True, order=True)
class PromptShape:
    """Of a captured step with prompts: tokens in all; rows, of which `prompts` may have more than one token."""

    tokens: int
    rows: int
    prompts: int


def prompt_shapes(max_rows: int, chunk_tokens: int, context: int) -> tuple[PromptShape, ...]:
    """Rising, for steps of up to chunk_tokens tokens, and up to the number from which launching a step takes less than the
    step: a quarter of chunk_tokens, which are as many as the card is fast.
    """
    (few, many), most = _MIXED_ROWS, min(max(_MIXED_TOKENS, chunk_tokens // 4), chunk_tokens, context)
    pairs = ((tokens, rows) for tokens in _PROMPT_TOKENS for rows in {min(few, max_rows), min(many, max_rows)})
    return tuple(sorted(
        PromptShape(tokens, min(rows, tokens), min(_MOST_PROMPTS if tokens <= _MIXED_TOKENS else _MOST_LONG_PROMPTS, rows))
        for tokens, rows in pairs if tokens <= most and (rows <= few or 2 * few < tokens <= _MIXED_TOKENS)
    ))


def shape_of(tokens: int, rows: int, prompts: int, shapes: tuple[PromptShape, ...]) -> PromptShape | None:
    """The shape that such a step runs as; None when there is none so large."""
    return next((s for s in shapes if s.tokens >= tokens and s.rows >= rows and s.prompts >= prompts), None)


def draft_widths(drafts: int) -> tuple[int, ...]:
    """Tokens of a row on average, rising: steps with drafts are captured for each. The last is all that rows may have."""
    widths = [1 + drafts]
    while widths[0] > 2:
        widths.insert(0, -(-widths[0] // 2))
    return tuple(widths)


def graph_bytes(
    spec: ModelSpec, dtypes: Dtypes, max_rows: int, drafts: int = 0, logit_rows: int = 0, *, low_bit: bool = False,
    library: bool = True, prompts: int = 0, prompt_bytes: int = 0,
) -> int:
    """Device memory of the graphs of steps of up to max_rows rows, and of as many with `drafts` drafts each if there are any.

    logit_rows: so many rows of logits are there at once where there are drafts, or one of each row if that is more. The logits
    and the activations of the largest step, which all graphs share, in whole segments, with sums in float32 unless weights are
    packed; cuBLAS's workspace if it multiplies any (library); and what the driver keeps of every node. prompts: graphs of steps
    with prompts, of which the largest takes prompt_bytes beside its logits.
    """
    wide = itemsize(dtypes.compute) if low_bit else max(4, itemsize(dtypes.compute))
    tokens = max_rows * (1 + drafts)
    logits = max(max_rows, min(tokens, logit_rows)) * spec.vocab_size * itemsize(dtypes.compute)
    activations = tokens * (8 * spec.hidden + max(3 * layer.mlp.intermediate for layer in spec.layers)) * wide
    step_nodes = len(spec.layers) * _LAYER_NODES
    if drafts:
        step_nodes += len(draft_widths(drafts)) * (step_nodes + (1 + drafts) * _DRAW_NODES)
    nodes = len(row_buckets(max_rows)) * step_nodes + prompts * len(spec.layers) * _LAYER_NODES
    shared = logits + max(activations, prompt_bytes) + _SEGMENT_BYTES + (_LIBRARY_BYTES if library else 0)
    return shared + _DRIVER_BYTES + nodes * _NODE_BYTES
