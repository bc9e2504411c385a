"""Prefill FLOPs that a cached entry saves, per byte that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import AttentionSpec, LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class FlopsPerByte:
    """token_flops: of one token apart from attention over the full context. pair_flops: of attention, for each token and each
    token before it. token_bytes: keys and values of a token. checkpoint_bytes: one recurrent state, 0 for a model without.
    """

    token_flops: float
    pair_flops: float
    token_bytes: int
    checkpoint_bytes: int = 0

    def flops(self, start: int, end: int) -> float:
        """To compute tokens start ... end - 1 behind those before them."""
        return self.token_flops * (end - start) + self.pair_flops * (end * end - start * start) / 2

    def pages(self, start: int, end: int) -> float:
        """Of pages with tokens start ... end - 1, where a sequence may be resumed at any token."""
        return self.flops(start, end) / (self.token_bytes * (end - start))

    def segment(self, start: int, end: int) -> float:
        """Of a checkpoint at `end` and the pages from the one before, at `start`, up to it."""
        return self.flops(start, end) / (self.token_bytes * (end - start) + self.checkpoint_bytes)

    def checkpoint(self, start: int, end: int) -> float:
        """Of a checkpoint at `end` alone, where the one before is at `start`: what is kept of pages is kept for others."""
        return self.flops(start, end) / self.checkpoint_bytes


def flops_per_byte(spec: ModelSpec, token_bytes: int, checkpoint_bytes: int) -> FlopsPerByte:
    """The policy of a model: two FLOPs for each weight, attention's scores and sums, and a state's update and reading."""
    tokens = sum(_layer_flops(spec, layer) for layer in spec.layers)
    pairs = sum(
        4 * mixer.heads * mixer.head_dim
        for mixer in (layer.mixer for layer in spec.layers)
        if isinstance(mixer, AttentionSpec) and mixer.window is None
    )
    return FlopsPerByte(tokens, pairs, token_bytes, checkpoint_bytes)


def _layer_flops(spec: ModelSpec, layer: LayerSpec) -> float:
    return 2 * spec.hidden * 3 * layer.mlp.intermediate + _mixer_flops(spec, layer)


def _mixer_flops(spec: ModelSpec, layer: LayerSpec) -> float:
    mixer = layer.mixer
    if isinstance(mixer, AttentionSpec):
        outputs = mixer.head_dim * (mixer.heads * (3 if mixer.gated else 2) + 2 * mixer.kv_heads)
        return 2 * spec.hidden * outputs + 4 * mixer.heads * mixer.head_dim * (mixer.window or 0)
    values = mixer.value_heads * mixer.value_dim
    outputs = mixer.conv_channels + 2 * values + 2 * mixer.value_heads
    return 2 * spec.hidden * outputs + 2 * mixer.conv_channels * mixer.conv_width + 6 * mixer.state_elements
