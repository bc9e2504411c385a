"""The least that a step must move and compute, counted from the model's declaration: no implementation is much faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cache.layout import cache_groups, state_elements
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, ModelSpec
from headrace.plan.dtypes import Dtypes, itemsize, token_bytes


@dataclass(frozen=True, slots=True)
class Load:
    """A step of `rows` rows of `tokens` query tokens each, `context` tokens long with them. sampled: draws of each."""

    rows: int
    tokens: int
    context: float
    sampled: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes through the device's memory, each read or written once, and floating-point operations."""

    bytes: float
    flops: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device reaches: bytes a second when weights are read, FLOP a second in a matrix product."""

    bytes_per_s: float
    flops_per_s: float

    def floor_s(self, work: Work) -> float:
        """The longer of the two times: moving the bytes and computing overlap at best."""
        return max(work.bytes / self.bytes_per_s, work.flops / self.flops_per_s)


def step_work(spec: ModelSpec, dtypes: Dtypes, weight_bytes: Mapping[str, int], load: Load) -> Work:
    """weight_bytes: of every parameter by name, in its format. Activations are not counted; they can stay in caches."""
    queries = load.rows * load.tokens
    state, tails = state_elements(spec)
    state_bytes = state * itemsize(dtypes.state) + tails * itemsize(dtypes.compute)
    moved = _read_weights(spec, weight_bytes, queries) + load.rows * (_kv_bytes(spec, dtypes, load) + 2 * state_bytes)
    flops = queries * (_token_flops(spec) + _attention_flops(spec, load))
    flops += load.rows * load.sampled * 2 * spec.vocab_size * spec.hidden
    return Work(moved, flops)


def _read_weights(spec: ModelSpec, weight_bytes: Mapping[str, int], queries: int) -> float:
    """All of them once. Of the embedding only the tokens' rows, unless it is the head too."""
    embedding = weight_bytes["embedding.weight"]
    looked_up = 0 if spec.tied else embedding - queries * embedding / spec.vocab_size
    return sum(weight_bytes.values()) - looked_up


def _kv_bytes(spec: ModelSpec, dtypes: Dtypes, load: Load) -> float:
    """One row's keys and values: those in sight are read, the new ones written."""
    total = 0.0
    for group in cache_groups(spec):
        seen = min(load.context, group.window + load.tokens - 1) if group.window else load.context
        total += token_bytes(group, dtypes.kv) * (seen + load.tokens)
    return total


def _token_flops(spec: ModelSpec) -> float:
    """Projections and recurrences of one token."""
    total = 0.0
    for layer in spec.layers:
        mixer = layer.mixer
        total += 2 * 3 * spec.hidden * layer.mlp.intermediate
        if isinstance(mixer, AttentionSpec):
            outputs = (mixer.heads * (2 if mixer.gated else 1) + 2 * mixer.kv_heads) * mixer.head_dim
            total += 2 * spec.hidden * (outputs + mixer.heads * mixer.head_dim)
        else:
            total += _gated_delta_flops(mixer, spec.hidden)
    return total


def _gated_delta_flops(mixer: GatedDeltaSpec, hidden: int) -> float:
    """Projections; the convolution; and of S its decay, S^T k, the rank-one update and S^T q: 7 operations an element."""
    values = mixer.value_heads * mixer.value_dim
    projections = 2 * hidden * (mixer.conv_channels + 2 * values + 2 * mixer.value_heads)
    return projections + 2 * mixer.conv_width * mixer.conv_channels + 7 * mixer.state_elements


def _attention_flops(spec: ModelSpec, load: Load) -> float:
    """Scores and their product with the values, of one token; the tokens of a row see (tokens - 1) / 2 less on average."""
    total = 0.0
    for layer in spec.layers:
        if isinstance(layer.mixer, AttentionSpec):
            seen = load.context - (load.tokens - 1) / 2
            seen = min(seen, layer.mixer.window) if layer.mixer.window else seen
            total += 4 * layer.mixer.heads * layer.mixer.head_dim * seen
    return total
