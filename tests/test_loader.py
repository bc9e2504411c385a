"""Weights that arrive in a decoder's parameters: values, coverage, progress, and the memory it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from safetensors.torch import load_file
from tests.support.gguf_files import write_gguf
from tests.support.large_checkpoint import write_large_checkpoint
from tests.support.oracle import transformers
from tests.support.parameter_tree import parameter_tree
from tests.support.tiny import MODEL_TYPES, checkpoint_tensors, make_tiny_checkpoint, random_model, tiny_config
from torch import Tensor, nn
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from headrace import loader
from headrace.errors import CheckpointError
from headrace.loader import load_weights
from headrace.models.decoder import build_decoder
from headrace.models.spec import Weight
from headrace.plan.checkpoint import Model, identify, open_checkpoint
from headrace.plan.demo import demo_model_path
from headrace.plan.gguf_file import read_gguf_header

SMALL_PIECE_BYTES = 1 << 9


def rows_of(decoder: nn.Module, weight: Weight) -> Tensor:
    parameter = decoder.get_parameter(weight.target)
    return parameter.detach()[weight.offset : weight.offset + weight.shape[0]]


def assert_loaded(decoder: nn.Module, model: Model, tensors: dict[str, Tensor]) -> None:
    for weight in model.weight_map.weights:
        loaded = rows_of(decoder, weight)
        expected = tensors[weight.source].reshape(loaded.shape).to(loaded.dtype)
        assert torch.equal(loaded, expected), weight.source


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_values(tmp_path: Path, model_type: str, stored: torch.dtype) -> None:
    path = make_tiny_checkpoint(tmp_path, model_type, shards=2, mtp=model_type.startswith("qwen3_5"), dtype=stored)
    tensors = {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
    model = identify(open_checkpoint(path))
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        decoder = build_decoder(model.spec, dtype=dtype, device=torch.device("cpu"))
        load_weights(model, decoder)
        assert_loaded(decoder, model, tensors)


@pytest.mark.parametrize("piece_bytes", [1, SMALL_PIECE_BYTES, 10_000])
@pytest.mark.parametrize("model_type", ["qwen3_5", "llama"])
def test_piece_size_does_not_matter(
    tmp_path: Path, model_type: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a row (or a head) at a time to several tensors' worth; progress rises to its end."""
    module = random_model(model_type, {**tiny_config(model_type), "vocab_size": 96, "intermediate_size": 64}, 0)
    if model_type == "llama":
        path = write_gguf(tmp_path / "model.gguf", module)
    else:
        path = make_tiny_checkpoint(tmp_path, model_type)
    model = identify(open_checkpoint(path))
    whole, pieces = parameter_tree(model.weight_map.weights), parameter_tree(model.weight_map.weights)
    load_weights(model, whole)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(loader, "_PIECE_BYTES", piece_bytes)
    load_weights(model, pieces, lambda done, total: seen.append((done, total)))
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, pieces.get_parameter(name)), name
    total_bytes = sum(model.checkpoint.tensors[w.source].nbytes for w in model.weight_map.weights)
    done = [d for d, _ in seen]
    assert {t for _, t in seen} == {total_bytes} and done[-1] == total_bytes
    assert done == sorted(set(done)) and len(done) > len(model.weight_map.weights) * (piece_bytes < 1000)


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_gguf_values(tmp_path: Path, name: str, quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices are what the gguf package makes of the file, with q and k rows back in their places."""
    monkeypatch.setattr(loader, "_PIECE_BYTES", SMALL_PIECE_BYTES)
    fields = {**tiny_config(name), "vocab_size": 96, "intermediate_size": 64, "attention_bias": True}
    module = random_model(name, fields, 0)
    path = write_gguf(tmp_path / "model.gguf", module, quant=GGMLQuantizationType[quant])
    model = identify(open_checkpoint(path))
    decoder = build_decoder(model.spec, dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, decoder)
    original = checkpoint_tensors(module)
    if quant == "F32":
        assert_loaded(decoder, model, original)
    else:
        for weight in model.weight_map.weights:
            tolerance = {"F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2, "Q4_0": 0.3}[quant]
            torch.testing.assert_close(rows_of(decoder, weight), original[weight.source], atol=tolerance, rtol=0)


@pytest.fixture(scope="module")
def demo() -> tuple[Model, nn.Module]:
    model = identify(open_checkpoint(demo_model_path()))
    decoder = build_decoder(model.spec, dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, decoder)
    return model, decoder


def test_demo_values(demo: tuple[Model, nn.Module]) -> None:
    """What the gguf package makes of the file, with q and k put in order by transformers."""
    model, decoder = demo
    config = model.checkpoint.config
    in_order = LlamaTensorProcessor({name: config[name] for name in ("num_attention_heads", "num_key_value_heads")})
    stored = {tensor.data_offset: tensor for tensor in GGUFReader(demo_model_path()).tensors}
    assert len(stored) == len(model.weight_map.weights) == 272
    for weight in model.weight_map.weights:
        tensor = stored[model.checkpoint.tensors[weight.source].offset]
        values = in_order.process(dequantize(tensor.data, tensor.tensor_type), tensor.name).weights
        assert np.array_equal(rows_of(decoder, weight).numpy(), values), weight.source


def test_demo_makes_sense(demo: tuple[Model, nn.Module]) -> None:
    """The weights, in transformers' model, know a fact: rows in a wrong order would not."""
    model, decoder = demo
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**model.checkpoint.config)).eval()
    weights = {weight.source: rows_of(decoder, weight) for weight in model.weight_map.weights}
    network.load_state_dict({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})
    words = read_gguf_header(demo_model_path()).array("tokenizer.ggml.tokens")
    prompt = [words.index(word) for word in ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")]
    with torch.no_grad():
        logits = network(torch.tensor([prompt])).logits
    assert words[int(logits[0, -1].argmax())] == "ĠParis"


def test_threads_are_as_before(tmp_path: Path) -> None:
    """Loading copies with one thread each; what follows, in this thread and in new ones, has all of them."""
    model = identify(open_checkpoint(make_tiny_checkpoint(tmp_path, "llama")))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        load_weights(model, parameter_tree(model.weight_map.weights))
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def llama(tmp_path: Path) -> Model:
    return identify(open_checkpoint(make_tiny_checkpoint(tmp_path, "llama")))


def with_weights(model: Model, *weights: Weight) -> Model:
    return replace(model, weight_map=replace(model.weight_map, weights=weights))


def test_row_written_by_none(llama: Model) -> None:
    decoder = parameter_tree(llama.weight_map.weights)
    norm = next(w for w in llama.weight_map.weights if w.target == "norm.weight")
    k = next(w for w in llama.weight_map.weights if w.offset)
    last = max((w for w in llama.weight_map.weights if w.target == k.target), key=lambda w: w.offset)
    for left_out, rows in ((norm, "0 to 31"), (k, f"{k.offset} to"), (last, f"{last.offset} to")):
        rest = [weight for weight in llama.weight_map.weights if weight is not left_out]
        with pytest.raises(CheckpointError, match=f"rows {rows}.* of {left_out.target}"):
            load_weights(with_weights(llama, *rest), decoder)
    assert all(parameter.isnan().all() for parameter in decoder.parameters())  # nothing is written before the check


def test_row_written_twice(llama: Model) -> None:
    decoder = parameter_tree(llama.weight_map.weights)
    k = next(w for w in llama.weight_map.weights if w.offset)
    others = [weight for weight in llama.weight_map.weights if weight is not k]
    for shifted in ([*others, k, k], [*others, replace(k, offset=k.offset - 1)]):
        with pytest.raises(CheckpointError, match=f"of {k.target} would be written twice"):
            load_weights(with_weights(llama, *shifted), decoder)


def test_targets_that_do_not_fit(llama: Model) -> None:
    decoder = parameter_tree(llama.weight_map.weights)
    weights = list(llama.weight_map.weights)
    with pytest.raises(CheckpointError, match="nowhere"):
        load_weights(with_weights(llama, *weights[:-1], replace(weights[-1], target="nowhere")), decoder)
    norm = next(i for i, w in enumerate(weights) if w.target == "norm.weight")
    for shape, words in (((33,), "norm.weight has 32 rows"), ((32, 2), r"rows of \[2\]")):
        changed = [*weights[:norm], replace(weights[norm], shape=shape), *weights[norm + 1 :]]
        with pytest.raises(CheckpointError, match=words):
            load_weights(with_weights(llama, *changed), decoder)


def test_file_that_shrinks_after_the_check(llama: Model) -> None:
    file = llama.checkpoint.path / "model.safetensors"
    os.truncate(file, file.stat().st_size - 40)
    with pytest.raises(CheckpointError, match=r"model\.safetensors has become shorter"):
        load_weights(llama, parameter_tree(llama.weight_map.weights))


def test_file_that_vanishes_after_the_check(llama: Model) -> None:
    (llama.checkpoint.path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        load_weights(llama, parameter_tree(llama.weight_map.weights))


def memory_of_loading(path: Path, dtype: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.support.load_memory", str(path), dtype]
    environment = {**os.environ, "PYTHONPATH": "src"}
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, float] = json.loads(finished.stdout)
    return result


def test_memory_of_loading_shards(tmp_path: Path) -> None:
    write_large_checkpoint(tmp_path)
    largest_bytes = max(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert largest_bytes >= 200e6
    for dtype in ("bfloat16", "float32"):
        result = memory_of_loading(tmp_path, dtype)
        assert result["parameter_bytes"] > 600e6
        assert result["beyond_bytes"] < 1.2 * largest_bytes
        # What the loader promises is much less: its pieces and what a conversion of one takes.
        assert result["beyond_bytes"] < 12 * loader._PIECE_BYTES, result


def test_memory_of_loading_gguf() -> None:
    result = memory_of_loading(demo_model_path(), "float32")
    assert result["parameter_bytes"] > 500e6
    assert result["beyond_bytes"] < 12 * loader._PIECE_BYTES, result
