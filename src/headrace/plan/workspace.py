"""What a step takes on a GPU beside weights and cache, for a while or for good: counted as the decoder's modules allocate it.

A step goes through the layers, then draws from logits: what one takes the other has had. In a layer the residual stream's
vectors lie beside what the mixer or the MLP makes; the most of them counts. Sizes follow `layers/` and the wrappers in
`kernels/`, of which the tests hold the constants equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from headrace.cache.layout import CacheGroup
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, ModelSpec, WeightMap
from headrace.plan.blocks import block_bytes
from headrace.plan.graph_rows import PromptShape, row_buckets
from headrace.plan.uploads import buffer_words, graph_words, step_words

SCORED_ROWS = 64
"""Rows of logits computed at once at most where prompts' log-probabilities are."""
LOGIT_ROWS = 256
"""The same where drafts are verified."""
RANKED_LOGITS = 2**21
RANKED_BYTES = 76
"""Logits that kernels.sample ranks at once, where draws or log-probabilities need it, and bytes of each meanwhile: 64 of the
ranking, and copies of the logits as they are, adjusted, and gathered."""
DECODED_BYTES = 64 * 2**20
"""What kernels.low_bit_linear takes for many rows, but on Hopper: activations in fp16, or pieces of weights decoded."""
FUSED_TOKENS = 256
"""For so many it decodes none anywhere."""
SPLIT_TOKENS, SPLIT_QUERIES, SPLIT_RESIDENT = 32, 64, 3
"""kernels.paged_attention splits rows of up to so many tokens, in blocks of so many queries of a key head at most, into items
of which a processor holds a few at once."""
MASK_ELEMENTS = 2**20
"""The same operation's reference: of a block of queries and the keys that they see."""
_RULE_VECTORS, _RULE_TOKENS = 24, 9
"""Of the reference of kernels.gated_delta_rule, for rows of so many tokens and more, which are filled up to whole pieces."""
PIECE_TOKENS, WIDE_PIECE_TOKENS = 64, 16
"""kernels.gated_delta_rule works on pieces of a row of so many tokens, of 16 bits and of 32."""
UNIT_BYTES, HEAD_BYTES, CHUNK_HEAD_DIM, CHUNK_GROUPS = 32_768, 33_280, 128, range(1, 5)
"""On Hopper kernels.gated_delta_mix.prefill does, for heads of this size and so many value heads of a key head: bytes of a
piece for each key head, and for each value head."""
SMALL_BYTES, SMALL_PIECE_BYTES = 16 * 2**20, 2**20
"""PyTorch's allocator keeps tensors of up to the second apart: those of a step."""
ASSUMED_PROCESSORS = 132
"""Of a card that says nothing of them."""
FEW_OUTPUTS_BYTES = 448 * (16 * 16 * 4 + 4)
"""Sums that the blocks of linear's kernel leave for each other."""
_HOPPER_LIBRARY_BYTES, _LIBRARY_BYTES = 32 << 20, 8_519_680
"""cuBLAS's workspace for a stream, as PyTorch has it by default."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a step's sizes follow from. tokens: the most of a step; narrow: bytes of an activation; capability: 0 unknown;
    split_tokens: the most of a row whose keys are split.
    """

    tokens: int
    rows: int
    drafts: int
    narrow: int
    processors: int
    capability: int
    low_bit: bool
    split_tokens: int = SPLIT_TOKENS

    def captured(self, shape: PromptShape) -> Sizes:
        """Of a captured step with prompts: all its rows' keys are split."""
        return replace(self, tokens=shape.tokens, rows=shape.prompts + 1, drafts=0, split_tokens=shape.tokens)

    @property
    def exact(self) -> int:
        """Bytes of what is kept in float32 or wider."""
        return max(4, self.narrow)


def step_tokens(chunk_tokens: int, rows: int, drafts: int) -> int:
    """The most tokens of a step: those that decode, and of a chunk what they leave, half of it at least (scheduler)."""
    decoding = rows * (1 + drafts)
    return decoding + chunk_tokens - min(decoding, chunk_tokens // 2)


def layers_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    """The most that lies there while a layer is computed."""
    rotary = max((m.rope.rotary_dims for layer in spec.layers if isinstance(m := layer.mixer, AttentionSpec)), default=0)
    return max(_layer_bytes(spec, layer, sizes) for layer in set(spec.layers)) + sizes.tokens * (rotary * sizes.exact + 5 * 8)


def _layer_bytes(spec: ModelSpec, layer: LayerSpec, sizes: Sizes) -> int:
    mixer = layer.mixer
    mixing = _attention_bytes if isinstance(mixer, AttentionSpec) else _gated_delta_bytes
    return max(mixing(spec, mixer, sizes), _mlp_bytes(spec, layer, sizes))  # type: ignore[arg-type]


def _mlp_bytes(spec: ModelSpec, layer: LayerSpec, sizes: Sizes) -> int:
    """The stream before the layer (two vectors), the mixer's, the new one and its norm; gate and up, and their product."""
    inner = layer.mlp.intermediate
    gate_up = (4 if layer.mlp.bias else 2) * inner
    decoded = DECODED_BYTES if _decodes(sizes) else 0
    stream = 5 * spec.hidden
    gating = sizes.tokens * (stream + gate_up + inner) * sizes.narrow
    multiplying = sizes.tokens * (stream + gate_up) * sizes.narrow + decoded
    down = sizes.tokens * (stream + inner + (2 if layer.mlp.bias else 1) * spec.hidden) * sizes.narrow + decoded
    return max(gating, multiplying, down)


def _attention_bytes(spec: ModelSpec, mixer: AttentionSpec, sizes: Sizes) -> int:
    """q, k, v and gate as one product, q again, rotated, the result; and sums of rows whose keys are split."""
    queries = mixer.heads * mixer.head_dim
    product = queries * (2 if mixer.gated else 1) + 2 * mixer.kv_heads * mixer.head_dim
    made = max(product * (2 if mixer.qkv_bias else 1), product + 2 * queries)
    longest = min(sizes.split_tokens, sizes.tokens)
    blocks = mixer.kv_heads * -(-longest * mixer.heads // (mixer.kv_heads * SPLIT_QUERIES))
    items = sizes.rows + SPLIT_RESIDENT * sizes.processors // blocks
    sums = items * longest * mixer.heads * (mixer.head_dim + 2) * 4
    decoded = DECODED_BYTES if _decodes(sizes) else 0
    return sizes.tokens * (4 * spec.hidden + made) * sizes.narrow + max(sums, decoded)


def _gated_delta_bytes(spec: ModelSpec, mixer: GatedDeltaSpec, sizes: Sizes) -> int:
    """q, k, v, z as one product, convolved q, k, v, what the rule makes of the pieces of every row, and its result."""
    values = mixer.value_heads * mixer.value_dim
    product = mixer.conv_channels + values + 2 * mixer.value_heads
    size = PIECE_TOKENS if sizes.narrow == 2 else WIDE_PIECE_TOKENS
    pieces = sizes.tokens // size + min(sizes.rows, sizes.tokens // 2)
    unit = 2 * mixer.key_heads * mixer.key_dim * sizes.narrow
    square = mixer.value_heads * (2 * size * sizes.narrow + 4)
    if _is_chunked_on_hopper(mixer, sizes):
        records = mixer.key_heads * UNIT_BYTES + mixer.value_heads * HEAD_BYTES
        between = sizes.tokens * values * sizes.narrow + pieces * records
    else:
        between = sizes.tokens * (mixer.conv_channels + values) * sizes.narrow + pieces * size * (unit + square)
    decoded = DECODED_BYTES if _decodes(sizes) else 0
    return sizes.tokens * (4 * spec.hidden + product) * sizes.narrow + max(between, decoded)


def _is_chunked_on_hopper(mixer: GatedDeltaSpec, sizes: Sizes) -> bool:
    heads = mixer.key_dim == mixer.value_dim == CHUNK_HEAD_DIM and mixer.value_heads // mixer.key_heads in CHUNK_GROUPS
    return heads and sizes.capability == 90 and sizes.narrow == 2


def _decodes(sizes: Sizes) -> bool:
    return sizes.low_bit and sizes.capability != 90 and sizes.tokens > FUSED_TOKENS


def logit_rows(rows: int, drafts: int) -> int:
    """Rows of logits that are there at once."""
    return max(rows, SCORED_ROWS, LOGIT_ROWS if drafts else 0)


def logits_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    """The most that lies there while tokens are drawn or scored, the hidden states of the step's tokens among it."""
    logits = logit_rows(sizes.rows, sizes.drafts) * spec.vocab_size
    if not logits:
        return 0
    ranking = min(logits, RANKED_LOGITS) * RANKED_BYTES
    return (sizes.tokens + sizes.rows) * spec.hidden * sizes.narrow + logits * sizes.exact + max(logits * sizes.narrow, ranking)


def kept_bytes(sizes: Sizes) -> int:
    """What kernels and cuBLAS keep from the first step on, each an allocation of its own. cuBLAS's workspace is that of the
    stream of steps; the one of the stream that captures is counted with the graphs.
    """
    library = library_bytes(sizes.capability)
    sums = _low_bit_sums(sizes.processors) if sizes.low_bit else ()
    return sum(map(block_bytes, (library, FEW_OUTPUTS_BYTES, *sums)))


def library_bytes(capability: int) -> int:
    """cuBLAS's workspace for a stream."""
    return _HOPPER_LIBRARY_BYTES if capability == 90 else _LIBRARY_BYTES


def low_bit_sums_bytes(processors: int) -> int:
    """Sums that workers of kernels.low_bit_linear leave for each other."""
    return sum(_low_bit_sums(processors))


def _low_bit_sums(processors: int) -> tuple[int, ...]:
    """Two tiles of each worker; and of the kernel for few rows, sums and flags."""
    tiles, others = 6 * processors, 3
    return 2 * processors * 32_768 * 4, others * (tiles + 4) * 16 * 8 * 4, others * tiles * 4


def decoded_bytes(weights: WeightMap, exact: int) -> int:
    """Of the largest packed weight where kernels.low_bit_linear's reference decodes it: codes, twice, and numbers, twice."""
    elements: dict[tuple[str, bool], int] = defaultdict(int)
    for weight in weights.weights:
        if weight.dtype in ("int32", "int8") and weight.target.endswith("weight_packed"):
            four = weight.dtype == "int32"
            words = 8 if four else 4 if weight.transform == "offset_bytes" else 1
            elements[weight.target, four] += prod(weight.shape) * words
    return max((count * 2 * (4 + exact if four else exact) for (_, four), count in elements.items()), default=0)


def reference_layers_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    """The most that lies there while a layer is computed by the references, without what attention gathers."""
    return reference_mlp_bytes(spec, sizes) + max(_reference_mixer_bytes(spec, layer, sizes) for layer in spec.layers)


def reference_mlp_bytes(spec: ModelSpec, sizes: Sizes) -> int:
    return sizes.tokens * (4 * spec.hidden + max(3 * layer.mlp.intermediate for layer in spec.layers)) * sizes.exact


def _reference_mixer_bytes(spec: ModelSpec, layer: LayerSpec, sizes: Sizes) -> int:
    """What a mixer's reference takes more than an MLP does; of Gated DeltaNet in chunks, _RULE_VECTORS for a token and head."""
    mixer, inner = layer.mixer, 3 * layer.mlp.intermediate
    if isinstance(mixer, AttentionSpec):
        made = (3 * mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim
        return max(0, made - inner) * sizes.tokens * sizes.exact
    values = mixer.value_heads * mixer.value_dim
    padded = sizes.tokens + PIECE_TOKENS * min(sizes.rows, sizes.tokens // _RULE_TOKENS)
    rule = padded * _RULE_VECTORS * mixer.value_heads * max(mixer.key_dim, mixer.value_dim)
    return max(0, sizes.tokens * (2 * mixer.conv_channels + values - inner) + rule) * sizes.exact


def gathered_bytes(spec: ModelSpec, group: CacheGroup, tokens: int, exact: int) -> int:
    """Of kernels.paged_attention's reference: one layer's keys and values of so many tokens, decoded, and their places."""
    widest = max(2 * m.kv_heads * m.head_dim for m in _attention(spec, group))
    return tokens * (widest * exact + 3 * 8)


def mask_bytes(spec: ModelSpec, group: CacheGroup, exact: int) -> int:
    """Of the same: the mask of a block of a prompt's queries, of every query head of a key head, and as numbers."""
    heads = max(m.heads // m.kv_heads for m in _attention(spec, group))
    return MASK_ELEMENTS * (1 + heads * (1 + exact))


def _attention(spec: ModelSpec, group: CacheGroup) -> Iterator[AttentionSpec]:
    mixers = (spec.layers[layer].mixer for layer in group.layers if layer < len(spec.layers))
    return (mixer for mixer in mixers if isinstance(mixer, AttentionSpec))


def table_bytes(groups: int, pool_slots: int, context: int, drafts: int, page_tokens: int) -> int:
    """Of `runner.page_tables.PageTables`: int64 for every page that a slot may have."""
    return groups * pool_slots * -(-(context + drafts) // page_tokens) * 8


def upload_bytes(
    groups: int, rows: int, pool_slots: int, tokens: int, pages: int, *, graphs: bool, drafts: bool = False
) -> int:
    """Of the numbers that are sent with a step (`runner.batch.Packer`, `runner.draft_batch.DraftPacker`), and with each
    captured one, without drafts.
    """
    captured = [graph_words(size, groups) for size in row_buckets(rows)] if graphs else []
    return 8 * sum(map(buffer_words, (step_words(tokens, pool_slots, pages, drafts=drafts), *captured)))
