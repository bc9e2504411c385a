"""DFlash and DFlash2 drafters as they are published: their sizes, and what is said of one that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace.errors import CheckpointError
from headrace.models import qwen3
from headrace.models.spec import ModelSpec
from headrace.plan.dflash import PUBLISHED, dflash_spec, dflash_weights, open_dflash, parameters, published_dflash

VOCABULARY = 60


def target(**changed: Any) -> ModelSpec:
    return qwen3.spec({
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "head_dim": 8, **changed,
    })


def opened(folder: Path, config: dict[str, Any], leave_out: str = "", **others: torch.Tensor) -> Any:
    tensors = {**dflash_tensors(config), **others}
    tensors.pop(leave_out, None)
    return open_dflash(write_dflash(folder, config, tensors), target())


def test_the_published_drafter_has_the_published_numbers() -> None:
    spec, weights = published_dflash()
    assert parameters(weights) == 1_924_404_480
    shapes = {weight.source: weight.shape for weight in weights.weights}
    assert len(shapes) == 3 + 5 * 15 + 3
    assert shapes["fc.weight"] == (5120, 25_600)
    assert shapes["layers.4.attention_conv.base_kernel"] == (2, 2, 5120)
    assert shapes["layers.0.mlp_conv.kernel_projection.weight"] == (1280, 5120)
    assert shapes["candidate_selector.successor_codebook"] == (248_320, 256)
    assert shapes["candidate_selector.hidden_projection.weight"] == (256, 5120)
    assert shapes == {name: tuple(tensor.shape) for name, tensor in meta_tensors().items()}
    assert (spec.block, spec.mask, spec.taps, spec.candidates) == (8, 248_070, (5, 19, 33, 47, 61), 16)
    assert spec.attention.window == 2048


def meta_tensors() -> dict[str, torch.Tensor]:
    """Shapes that the tests' own list of names makes of the published configuration, without memory."""
    with torch.device("meta"):
        original = torch.randn
        try:
            torch.randn = lambda shape, generator=None: torch.empty(shape)  # type: ignore[assignment]
            return dflash_tensors(PUBLISHED)
        finally:
            torch.randn = original


@pytest.mark.parametrize("first_form", [False, True])
def test_a_directory_is_read(tmp_path: Path, first_form: bool) -> None:
    found = opened(tmp_path / "drafter", dflash_config(VOCABULARY, first_form=first_form))
    assert (found.spec.convolution is None, found.spec.selector is None) == (first_form, first_form)
    assert found.spec.taps == (0, 2) and found.spec.candidates == (16 if first_form else 5)
    assert {weight.source for weight in found.weight_map.weights} == set(found.checkpoint.tensors)


def test_full_attention_has_no_window() -> None:
    config = dflash_config(VOCABULARY, layer_types=["full_attention"] * 2)
    assert dflash_spec(config).attention.window is None
    assert dflash_spec({**config, "layer_types": None, "sliding_window": None}).attention.window is None
    assert dflash_spec({**config, "layer_types": None}).attention.window == 24
    assert dflash_spec({**config, "dflash_config": {**config["dflash_config"], "block_size": None}, "block_size": 6}).block == 6


@pytest.mark.parametrize(("config", "message"), [
    (dflash_config(VOCABULARY, hidden=16), "its hidden_size is 16, that of the target 32"),
    (dflash_config(VOCABULARY + 4), "its vocab_size is 64, that of the target 60"),
    (dflash_config(VOCABULARY, inner={"target_layer_ids": [1, 4]}), "target's layer 4 .*there are 4"),
    (dflash_config(VOCABULARY, inner={"mask_token_id": 60}), "mask_token_id is 60, and the target has 60"),
    (dflash_config(VOCABULARY, inner={"mask_token_id": None}), "mask_token_id' is missing"),
    (dflash_config(VOCABULARY, inner={"target_layer_ids": None}), "target_layer_ids' is missing and must list"),
    (dflash_config(VOCABULARY, inner={"target_layer_ids": [2, 0]}), "target_layer_ids' is .2, 0., which must be in rising"),
    (dflash_config(VOCABULARY, inner={"conv_group_size": 5}), "conv_group_size' is 5, which must divide the hidden size, 32"),
    (dflash_config(VOCABULARY, inner={"block_size": 1}), "block_size' is 1, which must be at least 2"),
    (dflash_config(VOCABULARY, inner={"block_size": 25}), "block_size' is 25, which must be at least 2"),
    (dflash_config(VOCABULARY, inner={"output_multiplier": 0.5}), "output_multiplier' is 0.5, which is not supported"),
    (dflash_config(VOCABULARY, is_causal=True), "is_causal' is True, which is not supported"),
    (dflash_config(VOCABULARY, layer_types=["sliding_attention", "full_attention"]), "headrace does no mixture"),
    (dflash_config(VOCABULARY, layer_types=["full_attention"] * 3), "for each of the 2 layers of num_hidden_layers, not 3"),
    ({**dflash_config(VOCABULARY), "dflash_config": None}, "dflash_config' is missing and must be there"),
])
def test_a_configuration_that_does_not_fit_is_named(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    folder = write_dflash(tmp_path / "drafter", config, dflash_tensors(dflash_config(VOCABULARY)))
    with pytest.raises(CheckpointError, match=f"^drafter {folder}: .*{message}"):
        open_dflash(folder, target())


def test_a_tensor_that_does_not_fit_is_named_with_both_numbers(tmp_path: Path) -> None:
    config = dflash_config(VOCABULARY)
    with pytest.raises(CheckpointError, match="tensor 'layers.1.mlp_conv.base_kernel' is missing"):
        opened(tmp_path / "missing", config, "layers.1.mlp_conv.base_kernel")
    with pytest.raises(CheckpointError, match="tensor 'extra' in the checkpoint is none that this model has"):
        opened(tmp_path / "more", config, extra=torch.zeros(3))
    with pytest.raises(CheckpointError, match=r"tensor fc.weight is \[32, 96\], the configuration makes it \[32, 64\]"):
        opened(tmp_path / "taps", config, **{"fc.weight": torch.zeros(32, 96)})
    with pytest.raises(CheckpointError, match=r"self_attn.k_norm.weight is \[16\], the configuration makes it \[8\]"):
        opened(tmp_path / "heads", config, **{"layers.0.self_attn.k_norm.weight": torch.zeros(16)})
    with pytest.raises(CheckpointError, match="tensor norm.weight is I8"):
        opened(tmp_path / "types", config, **{"norm.weight": torch.zeros(32, dtype=torch.int8)})


def test_names_are_of_the_drafters_modules() -> None:
    weights = dflash_weights(dflash_spec(dflash_config(VOCABULARY)), None).weights
    assert len({(weight.target, weight.offset) for weight in weights}) == len(weights)
