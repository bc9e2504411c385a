"""Frequencies against transformers', which define them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.oracle import transformers

from headrace.kernels.angles import angles
from headrace.layers.rope import frequencies
from headrace.models import llama
from headrace.models.spec import AttentionSpec

CPU = torch.device("cpu")
SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_angles_are_those_of_transformers(scaling: dict[str, Any], theta: float) -> None:
    config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=scaling | {"rope_theta": theta})
    oracle = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    mixer = llama.spec(config.to_dict()).layers[0].mixer
    assert isinstance(mixer, AttentionSpec)
    freqs = frequencies(mixer.rope, CPU)
    torch.testing.assert_close(freqs, oracle.inv_freq, rtol=1e-6, atol=0)
    positions = torch.tensor([0, 1, 100, 20_000])
    cos, sin = oracle(torch.zeros(1), positions[None])
    found = angles(positions, freqs, torch.float32)
    for own, other in zip(found, (cos, sin), strict=True):
        torch.testing.assert_close(own[:, 0], other[0, :, :32], rtol=0, atol=4e-3)  # one rounding of a frequency x 20,000
        torch.testing.assert_close(own[:3, 0], other[0, :3, :32], rtol=0, atol=2e-5)
