"""What every declaration must do: the shared suite over the models registry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.support.tiny import MODEL_TYPES, checkpoint_tensors, random_model, tiny_config

from headrace.errors import CheckpointError
from headrace.models import MODELS, declaration_for
from headrace.models.decoder import build_decoder
from headrace.models.spec import ModelSpec

REQUIRED = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def declared(model_type: str, **fields: Any) -> tuple[ModuleType, dict[str, Any], dict[str, torch.Tensor]]:
    """The declaration, the config.json and the tensors of a small model."""
    model = random_model(model_type, {**tiny_config(model_type), "vocab_size": 50, **fields}, 0)
    config = json.loads(model.config.to_json_string())
    return declaration_for(config["model_type"]), config, checkpoint_tensors(model)


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that describes the language model."""
    text: dict[str, Any] = config.get("text_config", config)
    return text


def test_declarations_import_without_torch() -> None:
    code = ("import sys; from headrace.models import MODELS; [MODELS[n] for n in MODELS]; "
            "from headrace import quant; quant.format_for({}); sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "src"}).returncode == 0


def test_model_types_are_distinct() -> None:
    served = [model_type for name in MODELS for model_type in MODELS[name].MODEL_TYPES]
    assert len(served) == len(set(served))


@pytest.mark.parametrize("model_type", ["gpt_neo", None, 3])
def test_unknown_model_type_names_field_and_known_ones(model_type: object) -> None:
    with pytest.raises(CheckpointError, match=r"'model_type'.*llama, qwen3, qwen3_5, qwen3_5_text") as caught:
        declaration_for(model_type)
    assert model_type is None or repr(model_type) in str(caught.value)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("tied", [False, True])
def test_every_tensor_goes_to_its_own_rows(model_type: str, tied: bool) -> None:
    declaration, config, tensors = declared(model_type, tie_word_embeddings=tied, attention_bias=True)
    spec = declaration.spec(config)
    found = declaration.weights(spec, tensors)
    parameters = dict(build_decoder(spec, dtype=torch.bfloat16, device=torch.device("meta")).named_parameters())
    rows: dict[str, list[tuple[int, int]]] = {name: [] for name in parameters}
    for weight in found.weights:
        assert tensors[weight.source].shape == weight.shape
        assert (parameters[weight.target].dtype == torch.float32) == weight.wide
        rows[weight.target].append((weight.offset, weight.offset + weight.shape[0]))
    for name, taken in rows.items():
        edges = sorted(taken)
        assert edges[0][0] == 0 and edges[-1][1] == parameters[name].shape[0]
        assert all(end == start for (_, end), (start, _) in zip(edges, edges[1:], strict=False))
    left_out = {source for _, sources in found.left_out for source in sources}
    assert {w.source for w in found.weights} | set(found.kept) | left_out == set(tensors)
    assert spec.tied == tied


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_missing_and_unknown_tensors_are_named(model_type: str) -> None:
    declaration, config, tensors = declared(model_type)
    spec = declaration.spec(config)
    for name in declaration.weights(spec, tensors).weights:
        with pytest.raises(CheckpointError, match=f"'{name.source}' is missing"):
            declaration.weights(spec, tensors.keys() - {name.source})
    with pytest.raises(CheckpointError, match="'model.layers.0.surprise'"):
        declaration.weights(spec, [*tensors, "model.layers.0.surprise"])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_tied_head_that_is_stored_is_left_out(model_type: str) -> None:
    declaration, config, tensors = declared(model_type, tie_word_embeddings=True)
    found = declaration.weights(declaration.spec(config), [*tensors, "lm_head.weight"])
    assert ("copy of the tied embedding", ("lm_head.weight",)) in found.left_out


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("field", REQUIRED)
@pytest.mark.parametrize("value", [None, 0, -1, "8", True, 2.5])
def test_bad_counts_name_their_field(model_type: str, field: str, value: Any) -> None:
    declaration, config, _ = declared(model_type)
    text_of(config)[field] = value
    text_of(config).pop("layer_types", None)
    with pytest.raises(CheckpointError, match=f"{field}'"):
        declaration.spec(config)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("value", [4097, 10**12, 2**70])
def test_layers_beyond_reason_take_no_memory(model_type: str, value: int) -> None:
    declaration, config, _ = declared(model_type)
    text_of(config)["num_hidden_layers"] = value
    text_of(config).pop("layer_types", None)
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        declaration.spec(config)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize(("field", "value"), [
    ("hidden_act", "gelu"),
    ("num_key_value_heads", 3),
    ("rms_norm_eps", 0),
    ("attention_bias", "yes"),
    ("rope_parameters", [1]),
    ("rope_parameters", {"rope_type": "yarn", "factor": 4.0}),
    ("rope_parameters", {"rope_type": "linear"}),
    ("rope_parameters", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}),
    ("rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.1}),
])
def test_what_is_not_supported_is_refused_by_name(model_type: str, field: str, value: Any) -> None:
    declaration, config, _ = declared(model_type)
    text_of(config)[field] = value
    nested = "text_config." if "text_config" in config else ""
    with pytest.raises(CheckpointError, match=f"config field '({nested}{field}|partial_rotary_factor)"):
        declaration.spec(config)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_rope_in_the_spelling_of_transformers_4(model_type: str) -> None:
    declaration, config, _ = declared(model_type)
    text = text_of(config)
    partial = text["rope_parameters"].get("partial_rotary_factor", 1.0)
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5, "partial_rotary_factor": partial}
    new = text | {"rope_parameters": scaling}
    old: dict[str, Any] = text | {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5,
                                  "partial_rotary_factor": partial}
    del old["rope_parameters"]
    assert _spec(declaration, config, old) == _spec(declaration, config, new)


def _spec(declaration: ModuleType, config: Mapping[str, Any], text: dict[str, Any]) -> ModelSpec:
    found: ModelSpec = declaration.spec({**config, "text_config": text} if "text_config" in config else text)
    return found
