"""The multi-token head that Qwen3.5 checkpoints have: where each of its tensors goes. No torch.

15 tensors, all named mtp.*: two norms, a projection, one layer as the target's layers of full attention, a norm. Embedding and
head are the target's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from headrace.errors import CheckpointError
from headrace.models.mapping import TensorMapping, map_attention, map_mlp
from headrace.models.spec import AttentionSpec, DrafterCache, DrafterState, LayerSpec, ModelSpec, WeightMap
from headrace.plan.checkpoint import Model, check_weights
from headrace.quant import FORMATS, LinearFormat, format_for


@dataclass(frozen=True, slots=True)
class MtpHead:
    """A checkpoint's head. The targets of weight_map and the paths of formats are those of `speculate.mtp.MtpModule`."""

    layer: LayerSpec
    weight_map: WeightMap
    formats: Mapping[str, LinearFormat] = field(default_factory=dict)


def mtp_layer(spec: ModelSpec) -> LayerSpec:
    """The head's layer is as the target's last one of full attention. Raises CheckpointError if there is none."""
    layers = [layer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec) and layer.mixer.window is None]
    if not layers:
        raise CheckpointError("a multi-token head needs a layer of full attention in the model")
    return layers[-1]


def mtp_cache(spec: ModelSpec) -> DrafterCache:
    """Keys and values of the head's layer, and what the target's last norm made of a sequence's last token."""
    mixer = mtp_layer(spec).mixer
    assert isinstance(mixer, AttentionSpec)
    return DrafterCache((mixer,), (DrafterState((spec.hidden,)),))


def mtp_weights(spec: ModelSpec, names: Collection[str] | None) -> WeightMap:
    """names: of the head's tensors, None for those that it should have. Raises CheckpointError naming one that is missing, or
    that no head has.
    """
    mapping, hidden, layer = TensorMapping(names), spec.hidden, mtp_layer(spec)
    assert isinstance(layer.mixer, AttentionSpec)
    mapping.take("mtp.fc.weight", "fc.weight", hidden, 2 * hidden)
    mapping.take("mtp.pre_fc_norm_embedding.weight", "embedding_norm.weight", hidden, wide=True)
    mapping.take("mtp.pre_fc_norm_hidden.weight", "hidden_norm.weight", hidden, wide=True)
    mapping.take("mtp.norm.weight", "norm.weight", hidden, wide=True)
    source = "mtp.layers.0."
    mapping.take(f"{source}input_layernorm.weight", "layer.mixer_norm.weight", hidden, wide=True)
    map_attention(mapping, layer.mixer, hidden, f"{source}self_attn.", "layer.mixer.")
    mapping.take(f"{source}post_attention_layernorm.weight", "layer.mlp_norm.weight", hidden, wide=True)
    map_mlp(mapping, layer.mlp, hidden, f"{source}mlp.", "layer.mlp.")
    return mapping.finish()


def mtp_head(model: Model) -> MtpHead:
    """The head of the model's checkpoint. Raises CheckpointError naming what is missing, or does not fit, with both shapes."""
    checkpoint, kept = model.checkpoint, model.weight_map.kept
    tensors = {name: checkpoint.tensors[name] for name in kept}
    if not tensors:
        raise CheckpointError(f"{checkpoint.path} has no multi-token head")
    format = FORMATS[format_for(checkpoint.config)]
    try:
        weight_map = mtp_weights(model.spec, format.plain_names(tensors.keys()))
        weight_map, formats = format.stored(weight_map, checkpoint.config, tensors)
    except CheckpointError as error:
        raise CheckpointError(f"multi-token head of {checkpoint.path}: {error}") from None
    check_weights(checkpoint, weight_map)
    return MtpHead(mtp_layer(model.spec), weight_map, formats)


def head_model(model: Model, head: MtpHead) -> Model:
    """What is to be loaded into the head's module."""
    return replace(model, weight_map=head.weight_map, formats=head.formats)
