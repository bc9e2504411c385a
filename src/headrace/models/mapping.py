"""Building a WeightMap: each tensor is asked for by name, and at the end nothing may be missing or left over."""

from __future__ import annotations

from collections.abc import Collection

from headrace.errors import CheckpointError
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, MlpSpec, ModelSpec, Transform, Weight, WeightMap


class TensorMapping:
    """Collects where a checkpoint's tensors go. `names` are those that it has; None: whatever the model asks for."""

    def __init__(self, names: Collection[str] | None) -> None:
        self._left = None if names is None else set(names)
        self._weights: list[Weight] = []
        self._kept: tuple[str, ...] = ()
        self._left_out: list[tuple[str, tuple[str, ...]]] = []

    def take(
        self, source: str, target: str, *shape: int, offset: int = 0, transform: Transform = "none", wide: bool = False
    ) -> None:
        """`source` must be there. Raises CheckpointError naming it."""
        if self._left is not None and source not in self._left:
            raise CheckpointError(f"tensor '{source}' is missing from the checkpoint")
        if self._left is not None:
            self._left.remove(source)
        self._weights.append(Weight(source, target, shape, offset, transform, wide))

    def stack(self, target: str, inputs: int, parts: tuple[tuple[str, int], ...]) -> None:
        """Matrices (source, rows), each [rows, inputs], stacked in order into one target."""
        offset = 0
        for source, rows in parts:
            self.take(source, target, rows, inputs, offset=offset)
            offset += rows

    def stack_biases(self, target: str, parts: tuple[tuple[str, int], ...]) -> None:
        """Vectors (source, rows) stacked in order into one target."""
        offset = 0
        for source, rows in parts:
            self.take(source, target, rows, offset=offset)
            offset += rows

    def keep(self, prefix: str) -> None:
        """Tensors under `prefix` are for later."""
        self._kept += self._under(prefix)

    def leave_out(self, reason: str, *, prefix: str = "", suffix: str = "") -> None:
        """Tensors of this prefix and suffix are not used, if there are any."""
        if found := self._under(prefix, suffix):
            self._left_out.append((reason, found))

    def _under(self, prefix: str, suffix: str = "") -> tuple[str, ...]:
        found = tuple(sorted(n for n in self._left or () if n.startswith(prefix) and n.endswith(suffix)))
        if self._left is not None:
            self._left.difference_update(found)
        return found

    def finish(self) -> WeightMap:
        """The map. Raises CheckpointError naming a tensor that nothing asked for."""
        if self._left:
            more = f" (and {len(self._left) - 1} more)" if len(self._left) > 1 else ""
            raise CheckpointError(f"tensor '{min(self._left)}'{more} in the checkpoint is none that this model has")
        return WeightMap(tuple(self._weights), self._kept, tuple(self._left_out))


def map_decoder(mapping: TensorMapping, spec: ModelSpec, prefix: str) -> None:
    """Take every tensor of the decoder, named as Qwen and Llama checkpoints name them; `prefix` as "model."."""
    hidden = spec.hidden
    mapping.take(f"{prefix}embed_tokens.weight", "embedding.weight", spec.vocab_size, hidden)
    for index, layer in enumerate(spec.layers):
        source, target = f"{prefix}layers.{index}.", f"layers.{index}."
        mapping.take(f"{source}input_layernorm.weight", f"{target}mixer_norm.weight", hidden, wide=True)
        if isinstance(layer.mixer, AttentionSpec):
            map_attention(mapping, layer.mixer, hidden, f"{source}self_attn.", f"{target}mixer.")
        else:
            map_gated_delta(mapping, layer.mixer, hidden, f"{source}linear_attn.", f"{target}mixer.")
        mapping.take(f"{source}post_attention_layernorm.weight", f"{target}mlp_norm.weight", hidden, wide=True)
        map_mlp(mapping, layer.mlp, hidden, f"{source}mlp.", f"{target}mlp.")
    mapping.take(f"{prefix}norm.weight", "norm.weight", hidden, wide=True)
    if spec.tied:
        mapping.leave_out("copy of the tied embedding", prefix="lm_head.weight")
    else:
        mapping.take("lm_head.weight", "head.weight", spec.vocab_size, hidden)


def map_attention(mapping: TensorMapping, spec: AttentionSpec, hidden: int, source: str, target: str) -> None:
    dim, outputs = spec.head_dim, spec.heads * spec.head_dim
    parts = (("q_proj", outputs * (2 if spec.gated else 1)), ("k_proj", spec.kv_heads * dim), ("v_proj", spec.kv_heads * dim))
    mapping.stack(f"{target}qkv.weight", hidden, tuple((f"{source}{name}.weight", rows) for name, rows in parts))
    if spec.qkv_bias:
        mapping.stack_biases(f"{target}qkv.bias", tuple((f"{source}{name}.bias", rows) for name, rows in parts))
    mapping.take(f"{source}o_proj.weight", f"{target}out.weight", hidden, outputs)
    if spec.out_bias:
        mapping.take(f"{source}o_proj.bias", f"{target}out.bias", hidden)
    if spec.qk_norm:
        mapping.take(f"{source}q_norm.weight", f"{target}q_norm.weight", dim, wide=True)
        mapping.take(f"{source}k_norm.weight", f"{target}k_norm.weight", dim, wide=True)


def map_gated_delta(mapping: TensorMapping, spec: GatedDeltaSpec, hidden: int, source: str, target: str) -> None:
    heads, values = spec.value_heads, spec.value_heads * spec.value_dim
    mapping.stack(f"{target}qkvz.weight", hidden, (
        (f"{source}in_proj_qkv.weight", spec.conv_channels), (f"{source}in_proj_z.weight", values),
    ))
    mapping.stack(f"{target}ab.weight", hidden, ((f"{source}in_proj_a.weight", heads), (f"{source}in_proj_b.weight", heads)))
    mapping.take(f"{source}conv1d.weight", f"{target}conv_weight", spec.conv_channels, 1, spec.conv_width,
                 transform="squeeze_conv")
    mapping.take(f"{source}A_log", f"{target}a_log", heads, wide=True)
    mapping.take(f"{source}dt_bias", f"{target}dt_bias", heads, wide=True)
    mapping.take(f"{source}norm.weight", f"{target}norm_weight", spec.value_dim, wide=True)
    mapping.take(f"{source}out_proj.weight", f"{target}out.weight", hidden, values)


def map_mlp(mapping: TensorMapping, spec: MlpSpec, hidden: int, source: str, target: str) -> None:
    inner = spec.intermediate
    parts = ((f"{source}gate_proj", inner), (f"{source}up_proj", inner))
    mapping.stack(f"{target}gate_up.weight", hidden, tuple((f"{name}.weight", rows) for name, rows in parts))
    mapping.take(f"{source}down_proj.weight", f"{target}down.weight", hidden, inner)
    if spec.bias:
        mapping.stack_biases(f"{target}gate_up.bias", tuple((f"{name}.bias", rows) for name, rows in parts))
        mapping.take(f"{source}down_proj.bias", f"{target}down.bias", hidden)
