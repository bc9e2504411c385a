"""Which numbers of rows a decode step is captured for, and how much memory the captured graphs take."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes, itemsize

_DRAW_NODES, _COIN_NODES = 20, 56
_NODE_BYTES, _GRAPH_BYTES, _DRIVER_BYTES = 4_600, 120_000, 42_000_000
"""Measured on an H200 (PyTorch 2.11, driver 580): beside PyTorch's memory the driver keeps 113 MB for 25 graphs of steps and 25
of draws, of 14,000 nodes in all; about 147 MB for 99 of an engine with drafts, of 20,200; 216 MB for 144, of 34,100."""
_SEGMENT_BYTES = 20 << 20
"""What PyTorch's allocator asks the device for where a tensor takes 1 to 10 MiB."""
_APART = 7, 5
"""Activations lie in segments that others have cut: of five parts that are there at once seven are taken."""

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


@dataclass(frozen=True, slots=True)
class StepNodes:
    """Nodes of captured steps, the most of a layer: single, of one token a row, and longer. observes: behind a step with
    drafts, of the drafter on the device; proposes: of a graph of its proposals, one for each depth.
    """

    single: int
    longer: int
    observes: int = 0
    proposes: tuple[int, ...] = ()


PLAIN_NODES, FOUR_BIT_NODES, EIGHT_BIT_NODES = StepNodes(10, 13), StepNodes(6, 11), StepNodes(16, 19)
"""Of weights of 16 bits, of 4, and of those whose inputs are codes of 8 bits, which are made before."""


def graph_bytes(
    spec: ModelSpec, dtypes: Dtypes, max_rows: int, drafts: int = 0, logit_rows: int = 0, *, low_bit: bool = False,
    library_bytes: int = 0, prompts: int = 0, prompt_bytes: int = 0, nodes: StepNodes = PLAIN_NODES, taps: int = 0,
    coin: bool = False,
) -> int:
    """Device memory of the graphs of steps of up to max_rows rows, and of as many with `drafts` drafts each if there are any.

    logit_rows: so many rows of logits are there at once where there are drafts, or one of each row if that is more. The logits
    and the activations of the largest step, which all graphs share, with sums in float32 unless weights are packed; a library's
    workspace; and what the driver keeps. prompts: graphs of steps with prompts, of which the largest takes prompt_bytes beside
    its logits. taps: hidden states of each token that are left for a drafter. coin: accepts drafts.
    """
    wide = itemsize(dtypes.compute) if low_bit else max(4, itemsize(dtypes.compute))
    tokens = max_rows * (1 + drafts)
    logits = max(max_rows, min(tokens, logit_rows)) * spec.vocab_size * itemsize(dtypes.compute)
    activations = tokens * ((8 + taps) * spec.hidden + max(3 * layer.mlp.intermediate for layer in spec.layers)) * wide
    driver = _driver_bytes(len(spec.layers), len(row_buckets(max_rows)), drafts, prompts, nodes, coin=coin)
    return _shared_bytes(max(activations, prompt_bytes), logits) + library_bytes + driver


def _driver_bytes(layers: int, sizes: int, drafts: int, prompts: int, nodes: StepNodes, *, coin: bool) -> int:
    """What the driver keeps of each node and graph: of a step and its draw, with drafts of two draws for each width."""
    kept, graphs = layers * nodes.single + _DRAW_NODES, 2
    if drafts:
        widths, drawn = len(draft_widths(drafts)), (1 + drafts) * (_DRAW_NODES + coin * _COIN_NODES)
        observing = nodes.observes > 0
        kept += widths * (layers * nodes.longer + drawn) + (1 + widths) * nodes.observes + sum(nodes.proposes)
        graphs += 3 * widths + (1 + widths) * observing + len(nodes.proposes)
    in_prompts = prompts * (layers * nodes.longer + (0 if drafts else _DRAW_NODES))
    return _DRIVER_BYTES + (sizes * kept + in_prompts) * _NODE_BYTES + (sizes * graphs + 2 * prompts) * _GRAPH_BYTES


def _shared_bytes(activations: int, logits: int) -> int:
    """Logits lie where activations were, if one of these was as large; the largest is a third of them at least."""
    more, of = _APART
    return activations * more // of + (logits if logits > activations // 3 else 0) + _SEGMENT_BYTES
