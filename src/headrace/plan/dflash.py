"""DFlash and DFlash2 drafters: what their configuration says, and where each tensor of theirs goes. No torch.

A drafter of a few layers that proposes a block of tokens in one pass: it reads the target's hidden states behind some of its
layers, and shares the target's embedding and head. Published with 5 layers for Qwen3.8-27B (DFlash2: 1,924,404,480 numbers);
DFlash has neither convolutions nor a selector. Its norms multiply by their weights as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.models.fields import Fields, head_counts, rope
from headrace.models.mapping import TensorMapping, map_mlp
from headrace.models.spec import (
    AttentionSpec,
    DrafterCache,
    DrafterState,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    WeightMap,
)
from headrace.plan.checkpoint import Model, check_weights
from headrace.plan.contents import Checkpoint
from headrace.plan.hf_directory import open_directory
from headrace.quant import FORMATS, LinearFormat, format_for

_CANDIDATES = 16
_BLOCK = 8
PUBLISHED: Mapping[str, Any] = {
    "model_type": "qwen3", "architectures": ["DFlash2DraftModel"], "is_causal": False, "hidden_size": 5120,
    "intermediate_size": 17408, "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 248320, "rope_theta": 1e7, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
    "layer_types": ["sliding_attention"] * 5, "sliding_window": 2048,
    "dflash_config": {
        "block_size": 8, "mask_token_id": 248070, "target_layer_ids": [5, 19, 33, 47, 61], "conv_kernel_size": 2,
        "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16,
    },
}
"""The configuration of the drafter published for Qwen3.8-27B."""


@dataclass(frozen=True, slots=True)
class BlockConvolutionSpec:
    """taps: neighbouring tokens of a block that an output is made of. group: channels whose coefficients change together."""

    taps: int
    group: int


@dataclass(frozen=True, slots=True)
class SelectorSpec:
    """rank: of the table of which token may follow which."""

    rank: int


@dataclass(frozen=True, slots=True)
class DFlashSpec:
    """block: tokens of a pass, the last one sampled and masks. mask: the masks' token. taps: the target's layers whose outputs
    are read. candidates: tokens of each place among which the draft is drawn.
    """

    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    block: int
    mask: int
    taps: tuple[int, ...]
    candidates: int
    convolution: BlockConvolutionSpec | None
    selector: SelectorSpec | None

    @property
    def attention(self) -> AttentionSpec:
        """Of every layer."""
        mixer = self.layers[0].mixer
        assert isinstance(mixer, AttentionSpec)
        return mixer


@dataclass(frozen=True, slots=True)
class DFlashFiles:
    """A drafter on disk. formats: how linear layers keep their weights, by path in `speculate.dflash_model.DFlashModel`."""

    checkpoint: Checkpoint
    spec: DFlashSpec
    weight_map: WeightMap
    formats: Mapping[str, LinearFormat] = field(default_factory=dict)


def open_dflash(folder: Path, target: ModelSpec) -> DFlashFiles:
    """The drafter in a directory, for a target. Raises CheckpointError naming what is missing or does not fit."""
    checkpoint = open_directory(folder, tokenizer=False)
    try:
        spec = dflash_spec(checkpoint.config)
        _check_target(spec, target)
        format = FORMATS[format_for(checkpoint.config)]
        weight_map = dflash_weights(spec, format.plain_names(checkpoint.tensors.keys()))
        weight_map, formats = format.stored(weight_map, checkpoint.config, checkpoint.tensors)
    except CheckpointError as error:
        raise CheckpointError(f"drafter {folder}: {error}") from None
    check_weights(checkpoint, weight_map)
    return DFlashFiles(checkpoint, spec, weight_map, formats)


def drafter_model(target: Model, files: DFlashFiles) -> Model:
    """What is to be loaded into the drafter's modules."""
    return replace(target, checkpoint=files.checkpoint, weight_map=files.weight_map, formats=files.formats)


def published_dflash() -> tuple[DFlashSpec, WeightMap]:
    """The drafter of Qwen3.8-27B, as it was published."""
    spec = dflash_spec(PUBLISHED)
    return spec, dflash_weights(spec, None)


def dflash_cache(spec: DFlashSpec, context: int) -> DrafterCache:
    """What belongs to a sequence's state: which tokens its rings have, then each layer's keys and its values, of as many tokens
    as the window, or the longest sequence where there is none.
    """
    mixer = spec.attention
    size = mixer.window or context
    ring = DrafterState((size, mixer.kv_heads, mixer.head_dim))
    return DrafterCache(states=(DrafterState((size,), "int64"), *(ring,) * (2 * len(spec.layers))))


def parameters(weight_map: WeightMap) -> int:
    """Numbers of all tensors."""
    return sum(prod(weight.shape) for weight in weight_map.weights)


def dflash_spec(config: Mapping[str, Any]) -> DFlashSpec:
    """Raises CheckpointError naming a config field that is missing or not supported."""
    fields = Fields(config)
    if fields.get("dflash_config") is None:
        raise fields.error("dflash_config", "must be there: this is no DFlash drafter")
    inner = fields.mapping("dflash_config")
    fields.require("hidden_act", "silu", "silu")
    fields.require("attention_bias", False, False)
    fields.require("is_causal", False, False)
    for name, usual in (("input_embedding_scale", 1.0), ("output_multiplier", 1.0), ("final_logit_softcapping", 0)):
        inner.require(name, usual, usual)
    heads, kv_heads = head_counts(fields)
    head_dim = fields.count("head_dim", 128)
    window = _window(fields)
    attention = AttentionSpec(heads, kv_heads, head_dim, rope(fields, head_dim), qk_norm=True, window=window)
    layer = LayerSpec(attention, MlpSpec(fields.count("intermediate_size")))
    hidden = fields.count("hidden_size")
    return DFlashSpec(
        vocab_size=fields.count("vocab_size"),
        hidden=hidden,
        layers=(layer,) * fields.layer_count("num_hidden_layers"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        block=_block(inner if inner.get("block_size") is not None else fields, window),
        mask=_token(inner, "mask_token_id"),
        taps=_taps(inner),
        candidates=inner.count("selector_top_k", _CANDIDATES),
        convolution=_convolution(inner, hidden),
        selector=SelectorSpec(inner.count("selector_rank")) if inner.get("selector_rank") is not None else None,
    )


def _window(fields: Fields) -> int | None:
    types = fields.choices("layer_types", ("sliding_attention", "full_attention"))
    layers = fields.layer_count("num_hidden_layers")
    if types is not None and len(types) != layers:
        told = f"must have an entry for each of the {layers} layers of num_hidden_layers, not {len(types)}"
        raise fields.error("layer_types", told)
    if types is not None and len(set(types)) != 1:
        raise fields.error("layer_types", "must name one kind of attention for all layers; headrace does no mixture")
    if fields.get("sliding_window") is None and types is None or types and types[0] == "full_attention":
        return None
    return fields.count("sliding_window")


def _block(fields: Fields, window: int | None) -> int:
    block = fields.count("block_size", _BLOCK)
    if block < 2 or window is not None and block > window:
        raise fields.error("block_size", "must be at least 2, the last token and a draft, and no more than the window")
    return block


def _token(fields: Fields, name: str) -> int:
    token = fields.get(name)
    if type(token) is not int or token < 0:
        raise fields.error(name, "must be a token id")
    return token


def _taps(fields: Fields) -> tuple[int, ...]:
    taps = fields.get("target_layer_ids")
    if not isinstance(taps, list) or not taps or not all(type(layer) is int and layer >= 0 for layer in taps):
        raise fields.error("target_layer_ids", "must list the target's layers that are read")
    if sorted(set(taps)) != taps:
        raise fields.error("target_layer_ids", "must be in rising order, each layer once")
    return tuple(taps)


def _convolution(fields: Fields, hidden: int) -> BlockConvolutionSpec | None:
    if fields.get("conv_kernel_size") is None:
        return None
    group = fields.count("conv_group_size")
    if hidden % group:
        raise fields.error("conv_group_size", f"must divide the hidden size, {hidden}")
    return BlockConvolutionSpec(fields.count("conv_kernel_size"), group)


def _check_target(spec: DFlashSpec, target: ModelSpec) -> None:
    """What is shared with the target must be of its size."""
    for what, own, its in (
        ("hidden_size", spec.hidden, target.hidden), ("vocab_size", spec.vocab_size, target.vocab_size),
    ):
        if own != its:
            raise CheckpointError(f"its {what} is {own}, that of the target {its}")
    if spec.taps[-1] >= len(target.layers):
        raise CheckpointError(f"it reads the target's layer {spec.taps[-1]} (from 0 on), and there are {len(target.layers)}")
    if spec.mask >= target.vocab_size:
        raise CheckpointError(f"its mask_token_id is {spec.mask}, and the target has {target.vocab_size} tokens")


def dflash_weights(spec: DFlashSpec, names: Collection[str] | None) -> WeightMap:
    """The targets are parameters of `speculate.dflash`. Raises CheckpointError naming a tensor that is missing or unknown."""
    mapping, hidden = TensorMapping(names), spec.hidden
    mapping.take("fc.weight", "fc.weight", hidden, len(spec.taps) * hidden)
    mapping.take("hidden_norm.weight", "hidden_norm.weight", hidden, wide=True)
    mapping.take("norm.weight", "norm.weight", hidden, wide=True)
    for index, layer in enumerate(spec.layers):
        assert isinstance(layer.mixer, AttentionSpec)
        source, target = f"layers.{index}.", f"layers.{index}."
        mapping.take(f"{source}input_layernorm.weight", f"{target}mixer_norm.weight", hidden, wide=True)
        _map_attention(mapping, layer.mixer, hidden, f"{source}self_attn.", f"{target}mixer.")
        mapping.take(f"{source}post_attention_layernorm.weight", f"{target}mlp_norm.weight", hidden, wide=True)
        map_mlp(mapping, layer.mlp, hidden, f"{source}mlp.", f"{target}mlp.")
        if spec.convolution is not None:
            for source_name, target_name in (("attention_conv", "mixer_convolution"), ("mlp_conv", "mlp_convolution")):
                _map_convolution(mapping, spec.convolution, hidden, f"{source}{source_name}.", f"{target}{target_name}.")
    if spec.selector is not None:
        rank = spec.selector.rank
        for name in ("predecessor_codebook", "successor_codebook"):
            mapping.take(f"candidate_selector.{name}", f"selector.{name}", spec.vocab_size, rank)
        mapping.take("candidate_selector.hidden_projection.weight", "selector.projection.weight", rank, hidden)
    return mapping.finish()


def _map_attention(mapping: TensorMapping, spec: AttentionSpec, hidden: int, source: str, target: str) -> None:
    """Queries apart from keys and values, which are made of the target's hidden states too."""
    queries, keys, dim = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.head_dim
    mapping.take(f"{source}q_proj.weight", f"{target}q.weight", queries, hidden)
    mapping.stack(f"{target}kv.weight", hidden, ((f"{source}k_proj.weight", keys), (f"{source}v_proj.weight", keys)))
    mapping.take(f"{source}o_proj.weight", f"{target}out.weight", hidden, queries)
    mapping.take(f"{source}q_norm.weight", f"{target}q_norm.weight", dim, wide=True)
    mapping.take(f"{source}k_norm.weight", f"{target}k_norm.weight", dim, wide=True)


def _map_convolution(mapping: TensorMapping, spec: BlockConvolutionSpec, hidden: int, source: str, target: str) -> None:
    coefficients = 2 * spec.taps * (hidden // spec.group)
    mapping.take(f"{source}base_kernel", f"{target}base", 2, spec.taps, hidden)
    mapping.take(f"{source}kernel_projection.weight", f"{target}projection.weight", coefficients, hidden)
