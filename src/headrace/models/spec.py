"""What a model is, without torch: the numbers its decoder is built from and where each checkpoint tensor goes.

A declaration (`models/<name>.py`) turns a configuration into a ModelSpec and the checkpoint's tensor names into a WeightMap.
`models/decoder.py` builds modules from the spec; `loader.py` fills them by the map; `plan` counts bytes from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Transform = Literal["none", "squeeze_conv", "unpermute_rope", "offset_bytes"]
"""How a checkpoint tensor becomes rows of its target: as it is; [C, 1, W] -> [C, W]; llama.cpp's q/k rows -> half-split;
int32 [O, I / 4] of bytes that are 128 too large -> int8 [O, I]."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding over the first `rotary_dims` of each head, half-split pairs (i, i + rotary_dims / 2).

    scaling "none", "linear" (positions / factor) or "llama3" (its factor, low and high frequency factors, original context).
    """

    theta: float
    rotary_dims: int
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Softmax attention over paged keys and values; `window` None is the full context.

    gated: q_proj yields, per head, head_dim of query then head_dim of gate; the output is multiplied by sigmoid(gate).
    qk_norm: RMS norm over each head of q and k before the rotary embedding (with the model's norm offset).
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    gated: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    """Gated DeltaNet: `value_heads` states of [key_dim, value_dim]; each key head serves value_heads / key_heads of them.

    A causal depthwise convolution of `conv_width` taps runs over q | k | v, `conv_channels` wide.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_elements(self) -> int:
        """Elements of S for one sequence and layer."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def conv_elements(self) -> int:
        """Elements of the convolution tail (the last conv_width - 1 inputs) for one sequence and layer."""
        return self.conv_channels * (self.conv_width - 1)


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated MLP: down(silu(gate(x)) * up(x))."""

    intermediate: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """x += mixer(norm(x)); x += mlp(norm(x))."""

    mixer: AttentionSpec | GatedDeltaSpec
    mlp: MlpSpec


@dataclass(frozen=True, slots=True)
class DrafterState:
    """A tensor of `shape` in every state, zeros at first. type: of the activations, of keys and values, or int64."""

    shape: tuple[int, ...]
    type: Literal["compute", "kv", "int64"] = "compute"


@dataclass(frozen=True, slots=True)
class DrafterCache:
    """What a drafter keeps of every sequence. attention: of its layers whose keys and values are pages, of the same tokens as
    the model's; they count as layers behind those. states: what belongs to a sequence's state, and goes where that goes.
    """

    attention: tuple[AttentionSpec, ...] = ()
    states: tuple[DrafterState, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder: embedding, layers, final norm, head.

    norm_offset: RMS norms multiply by (norm_offset + weight): 1.0 for zero-centred weights, 0.0 for plain ones. The gated
    norm inside Gated DeltaNet always takes its weight as it is. tied: the head is the embedding.
    mtp_layers: layers of the multi-token-prediction head that the checkpoint declares (kept for a drafter). drafter: what
    one keeps of every sequence, in an engine that has one.
    """

    model_type: str
    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    max_context: int
    norm_offset: float = 0.0
    tied: bool = False
    mtp_layers: int = 0
    drafter: DrafterCache | None = None

    @property
    def mixers(self) -> tuple[AttentionSpec | GatedDeltaSpec, ...]:
        """Of the layers, then of those of the drafter whose keys and values are pages."""
        return (*(layer.mixer for layer in self.layers), *(self.drafter.attention if self.drafter else ()))


@dataclass(frozen=True, slots=True)
class Weight:
    """One checkpoint tensor: `source` of `shape` goes, after `transform`, to rows offset ... of parameter `target`.

    wide: the parameter is kept in float32 or better, whatever the model's type (norm weights, decay parameters). dtype: the
    type that the parameter has whatever the model's, as torch names it (packed weights and their scales).
    """

    source: str
    target: str
    shape: tuple[int, ...]
    offset: int = 0
    transform: Transform = "none"
    wide: bool = False
    dtype: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WeightMap:
    """Where every tensor of a checkpoint goes. Equal to itself alone, so that what is summed over it can be remembered by it.

    weights: what the decoder needs. kept: sources of a multi-token head, for whoever drafts with it. left_out: (reason,
    sources) that this engine does not use, to be said so ("vision tower"). A checkpoint tensor in none of them is an error.
    """

    weights: tuple[Weight, ...]
    kept: tuple[str, ...] = ()
    left_out: tuple[tuple[str, tuple[str, ...]], ...] = ()
