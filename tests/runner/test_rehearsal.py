"""What is rehearsed before the first step: every kind of layer, every size of step, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.models import qwen3_5
from headrace.models.decoder import Decoder, build_decoder
from headrace.plan.dtypes import Dtypes
from headrace.plan.graph_rows import row_buckets
from headrace.quant.compressed_tensors import LowBit
from headrace.random_weights import make_weights
from headrace.runner import rehearsal, sampler

CONFIG = {
    "model_type": "qwen3_5_text", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 8,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
SPEC = qwen3_5.spec(CONFIG)


def make_decoder(**formats: LowBit) -> Decoder:
    decoder = build_decoder(SPEC, dtype=torch.float32, device=torch.device("cpu"), formats=formats)
    make_weights(decoder)
    decoder.prepare()
    return decoder


def test_an_outline_has_a_layer_of_each_kind_and_the_first_and_the_last() -> None:
    decoder = make_decoder()
    assert [decoder.layers[n] for n in (0, 1, 3, 7)] == list(decoder.outline().layers) and len(decoder.layers) == 8
    mixed = make_decoder(**{"layers.5.mlp.down": LowBit(4, 32)})
    assert [mixed.layers[n] for n in (0, 1, 3, 5, 7)] == list(mixed.outline().layers)
    assert mixed.outline().head is mixed.head


@pytest.mark.parametrize("most", [1, 2, 3, 16, 100, 1024, 1025, 5000])
def test_sizes_of_prompts(most: int) -> None:
    sizes = rehearsal.prompt_sizes(most)
    assert sizes[-1] == most and list(sizes) == sorted(set(sizes)) and sizes[0] >= 1
    for power in (2, 8, 64, 512, 4096):
        assert (power in sizes) == (power <= most) and (power + 1 in sizes) == (power + 1 <= most)
    assert (768 in sizes) == (most > 768)


@pytest.mark.parametrize(("slots", "chunk_tokens"), [(1, 1), (1, 40), (5, 40), (64, 1024)])
def test_every_number_of_decoding_rows_and_both_kinds_together(slots: int, chunk_tokens: int) -> None:
    steps = list(rehearsal.steps(slots, chunk_tokens))
    assert {(1,) * rows for rows in row_buckets(slots)} <= set(steps) and (chunk_tokens,) in steps
    assert all(len(tokens) <= slots and sum(tokens) <= chunk_tokens + slots for tokens in steps)
    if slots > 2:
        assert (1, 1, chunk_tokens) in steps and any(tokens[-1] == 1 < tokens[0] for tokens in steps)


@pytest.mark.parametrize(("slots", "drafts"), [(4, 0), (4, 3), (64, 7)])
def test_a_rehearsal_steps_through_all_of_it(slots: int, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels are for a GPU; here the steps are those of the references, on a cache of a page."""
    decoder, layout = make_decoder(), CacheLayout(cache_groups(SPEC), 8, (50,), slots, True, drafts)
    before = {name: parameter.clone() for name, parameter in decoder.named_parameters()}
    seen: list[tuple[int, int]] = []
    forward = Decoder.forward

    def watch(self: Decoder, batch: Any, pools: Any, wanted: torch.Tensor | None = None) -> torch.Tensor:
        hidden = forward(self, batch, pools, wanted)
        assert torch.isfinite(hidden).all()
        seen.append((len(self.layers), len(hidden)))
        return hidden

    monkeypatch.setattr(Decoder, "forward", watch)
    dtypes = Dtypes("float32", "float32", "float32")
    rehearsal.rehearse(SPEC, decoder, layout, dtypes, torch.device("cpu"), context=64, chunk_tokens=20)
    layers = len(decoder.outline().layers)
    drafted = [(layers, rows * (1 + drafts)) for rows in row_buckets(slots) if drafts]
    assert seen[:-3] == [*((layers, sum(tokens)) for tokens in rehearsal.steps(slots, 20)), *drafted]
    assert seen[-3:] == [(8, 20), (8, 10), (8, 5)]
    assert all(torch.equal(parameter, before[name]) for name, parameter in decoder.named_parameters())


@pytest.mark.parametrize("drafts", [1, 7])
def test_nothing_is_looked_up_by_tokens_that_no_kernel_drew(drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled ahead and not run, so where they would have written there is anything."""
    drawn: list[int] = []

    def garbage(logits: torch.Tensor, *rest: object) -> torch.Tensor:
        drawn.append(len(logits))
        return torch.full((len(logits),), 1 << 40)

    monkeypatch.setattr(sampler, "sample", garbage)
    decoder, layout = make_decoder(), CacheLayout(cache_groups(SPEC), 8, (50,), 4, True, drafts)
    dtypes = Dtypes("float32", "float32", "float32")
    rehearsal.rehearse(SPEC, decoder, layout, dtypes, torch.device("cpu"), context=64, chunk_tokens=20)
    assert set(drawn) >= {rows * (1 + drafts) for rows in row_buckets(4)}


def test_sizes_are_chosen_for_forms_that_no_size_before_has() -> None:
    def forms(size: int) -> tuple[int, bool]:
        return size // 10, size == 7

    assert list(rehearsal.met_by(forms, range(1, 30))) == [1, 7, 10, 20]
    assert list(rehearsal.met_by(forms, range(1, 30), [5, 25])) == [7, 10]


@pytest.mark.parametrize("most", [1, 5, 16, 17, 100, 256, 1000])
def test_turning_points_end_at_the_most(most: int) -> None:
    points = rehearsal.turning_points(most)
    assert points[-1] == most and list(points) == sorted(set(points)) and points[0] == 1
    assert set(range(1, min(most, 16) + 1)) <= set(points)
