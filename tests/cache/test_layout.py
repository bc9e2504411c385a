"""Groups and state sizes of a declared hybrid."""

from __future__ import annotations

from headrace.cache.layout import cache_groups, state_elements
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec

ROPE = RopeSpec(1e7, 64)
FULL = AttentionSpec(24, 4, 256, ROPE, gated=True, qk_norm=True)
DELTA = GatedDeltaSpec(16, 48, 128, 128, 4)
MLP = MlpSpec(17408)


def model(*mixers: AttentionSpec | GatedDeltaSpec) -> ModelSpec:
    return ModelSpec("qwen3_5", 248320, 5120, tuple(LayerSpec(m, MLP) for m in mixers), 1e-6, 262144)


def test_qwen38_27b_keeps_the_published_bytes() -> None:
    spec = model(*[FULL if i % 4 == 3 else DELTA for i in range(64)])
    (group,) = cache_groups(spec)
    assert group.layers == tuple(range(3, 64, 4))
    assert group.token_elements * 2 == 65_536  # bf16
    s, tails = state_elements(spec)
    assert s * 4 + tails * 2 == 48 * 3_207_168  # fp32 states, bf16 tails: 153.9 MB
    assert s * 2 + tails * 2 == 48 * 1_634_304


def test_windows_are_groups_of_their_own() -> None:
    windowed = AttentionSpec(8, 2, 64, ROPE, window=128)
    groups = cache_groups(model(windowed, FULL, DELTA, windowed))
    assert [(g.index, g.window, g.layers) for g in groups] == [(0, None, (1,)), (1, 128, (0, 3))]


def test_a_model_without_attention_has_no_groups() -> None:
    assert cache_groups(model(DELTA, DELTA)) == ()
