"""Checkpoints of compressed-tensors: told from their headers, loaded, and served as the weights that they stand for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.compressed import Scheme, compress, quantise, rounded, settings
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM, SamplingParams
from headrace.commands.tensor_classes import tensor_classes
from headrace.errors import CheckpointError
from headrace.kernels.low_bit_linear.reference import dequantized
from headrace.kernels.quantise_rows import quantise_rows
from headrace.layers.linear import Linear
from headrace.loader import load_weights
from headrace.models.decoder import build_decoder
from headrace.plan.checkpoint import identify, open_checkpoint
from headrace.plan.weight_memory import weight_bytes
from headrace.quant.compressed_tensors import LowBit
from headrace.quant.unquantized import Plain

SIZES = {"hidden_size": 64, "intermediate_size": 128, "linear_value_head_dim": 16, "head_dim": 16}
SCHEMES = {
    "group 32": Scheme(), "group 64": Scheme(group=64, scale=torch.float16), "zero points": Scheme(symmetric=False),
    "a row": Scheme(group=0, scale=torch.float32), "8 bits packed": Scheme(8, 0), "8 bits": Scheme(8, 0, packed=False),
}


def in_decoder(name: str) -> bool:
    return "in_proj_a" not in name and "in_proj_b" not in name


def checkpoint(directory: Path, scheme: Scheme, model_type: str = "qwen3_5_text") -> tuple[Path, dict[str, torch.Tensor]]:
    fields = SIZES if model_type.startswith("qwen3_5") else {k: v for k, v in SIZES.items() if not k.startswith("linear")}
    path = make_tiny_checkpoint(directory, model_type, config=fields)
    return path, compress(path, scheme, in_decoder)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3"])
def test_the_weights_that_are_meant_arrive(tmp_path: Path, scheme: Scheme, model_type: str) -> None:
    path, meant = checkpoint(tmp_path, scheme, model_type)
    model = identify(open_checkpoint(path))
    decoder = build_decoder(model.spec, dtype=torch.float32, device=torch.device("cpu"), formats=model.formats)
    load_weights(model, decoder)
    seen = 0
    for weight in model.weight_map.weights:
        part, _, name = weight.source.rpartition(".")
        if f"{part}.weight" in meant and weight.target.endswith("weight_packed"):
            module = decoder.get_submodule(weight.target.rpartition(".")[0])
            assert isinstance(module, Linear)
            tensors = (getattr(module, f"weight_{n}", None) for n in ("packed", "scale", "zero_point"))
            rows = dequantized(*tensors, dtype=torch.float64)[weight.offset : weight.offset + weight.shape[0]]
            assert torch.equal(rows, meant[f"{part}.weight"]), (weight.source, name)
            seen += 1
    assert seen >= 4 * len(model.spec.layers)
    allocated = sum(p.numel() * p.element_size() for p in decoder.parameters())
    assert allocated == weight_bytes(model.weight_map, "float32")


@pytest.mark.parametrize("scheme", [SCHEMES["zero points"], SCHEMES["group 64"], SCHEMES["8 bits"]], ids=str)
def test_served_as_its_dequantised_weights(tmp_path: Path, scheme: Scheme) -> None:
    """In float64 the tokens are those of the plain checkpoint that has the rounded weights, log-probabilities too."""
    path, meant = checkpoint(tmp_path / "packed", scheme)
    plain = make_tiny_checkpoint(tmp_path / "plain", config=SIZES)
    save_file({name: tensor.double() for name, tensor in meant.items()}, plain / "model.safetensors", metadata={"format": "pt"})
    params = SamplingParams(temperature=0.0, max_tokens=24, logprobs=3, ignore_eos=True)
    prompts = [list(range(5, 40)), [7, 9, 11]]
    answers = []
    for directory in (path, plain):
        with LLM(str(directory), device="cpu", dtype="float64", context=128, max_seqs=2) as llm:
            answers.append(llm.generate(prompts, params))
    for ours, expected in zip(*answers, strict=True):
        assert ours.tokens == expected.tokens
        for got, want in zip(ours.logprobs or (), expected.logprobs or (), strict=True):
            assert got.logprob == pytest.approx(want.logprob, abs=1e-9)


ROUNDED = {
    "4 bits, int8": Scheme(activations="int"), "4 bits, fp8": Scheme(group=64, symmetric=False, activations="float"),
    "8 bits, int8": Scheme(8, 0, packed=False, activations="int"), "8 bits, fp8": Scheme(8, 0, activations="float"),
}


@pytest.mark.parametrize("scheme", ROUNDED.values(), ids=ROUNDED)
def test_layers_round_their_inputs_as_asked(tmp_path: Path, scheme: Scheme) -> None:
    """Every layer that the checkpoint quantises, and no other, against compressed-tensors' own rounding."""
    path, meant = checkpoint(tmp_path, scheme)
    model = identify(open_checkpoint(path))
    decoder = build_decoder(model.spec, dtype=torch.float64, device=torch.device("cpu"), formats=model.formats)
    load_weights(model, decoder)
    seen = 0
    for weight in model.weight_map.weights:
        part, _, name = weight.source.rpartition(".")
        if weight.target.endswith("weight_scale"):
            layer = decoder.get_submodule(weight.target.rpartition(".")[0])
            assert isinstance(layer, Linear)
            x = torch.randn(5, layer.inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seen))
            x[2] = 0
            expected = rounded(x, str(scheme.activations)) @ meant[f"{part}.weight"].T
            found = layer(x)[:, weight.offset : weight.offset + weight.shape[0]]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12, msg=weight.source)
            assert float((found - x @ meant[f"{part}.weight"].T).abs().max()) > 1e-4
            seen += 1
    assert seen >= 4 * len(model.spec.layers)
    assert all(isinstance(format, LowBit) and format.activations for format in model.formats.values())


@pytest.mark.parametrize("scheme", ROUNDED.values(), ids=ROUNDED)
def test_served_as_its_dequantised_weights_on_rounded_inputs(
    tmp_path: Path, scheme: Scheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle, in float64: the plain checkpoint of the dequantised weights, whose layers round their inputs."""
    path, meant = checkpoint(tmp_path / "packed", scheme)
    plain = make_tiny_checkpoint(tmp_path / "plain", config=SIZES)
    save_file({name: tensor.double() for name, tensor in meant.items()}, plain / "model.safetensors", metadata={"format": "pt"})
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=0, ignore_eos=True)
    prompts = [list(range(5, 40)), [7, 9, 11]]
    with LLM(str(path), device="cpu", dtype="float64", context=128, max_seqs=2) as llm:
        answers = llm.generate(prompts, params)
    model = identify(open_checkpoint(path))
    linears = {name: module for name, module in build_decoder(model.spec, dtype=torch.float64, device=torch.device("meta"))
               .named_modules() if isinstance(module, Linear)}
    quantised, others = ({(m.outputs, m.inputs) for name, m in linears.items() if (name in model.formats) == which}
                         for which in (True, False))
    assert not quantised & others  # so that a matrix's shape tells whether it was quantised
    plain_apply = Plain.apply

    def apply(self: Plain, parameters: Any, x: torch.Tensor, *, prepared: bool) -> torch.Tensor:
        seen = rounded(x, str(scheme.activations)) if parameters["weight"].shape in quantised else x
        return plain_apply(self, parameters, seen, prepared=prepared)

    monkeypatch.setattr(Plain, "apply", apply)
    with LLM(str(plain), device="cpu", dtype="float64", context=128, max_seqs=2) as llm:
        expected = llm.generate(prompts, params)
    for ours, want in zip(answers, expected, strict=True):
        assert ours.tokens == want.tokens
        for got, logprob in zip(ours.logprobs or (), want.logprobs or (), strict=True):
            assert got.logprob == pytest.approx(logprob.logprob, abs=1e-9)


def test_codes_are_those_of_compressed_tensors() -> None:
    """But for a row's largest number where it is negative, which lies between two codes."""
    x = torch.randn(200, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    codes, scale = quantise_rows(x, torch.int8)
    theirs = rounded(x, "int", lowest=-128.0) / scale[:, None]
    differs = (codes - theirs).abs() > 0.5
    assert 0 < int(differs.sum()) and bool((x / scale[:, None])[differs].sub(-127.5).abs().max() < 1e-9)
    floats, scale = quantise_rows(x, torch.float8_e4m3fn)
    assert torch.equal(floats.double() * scale[:, None], rounded(x, "float"))


def test_the_closest_group_says_whether_inputs_are_rounded(tmp_path: Path) -> None:
    """By name before by pattern before by class."""
    path, _ = checkpoint(tmp_path, Scheme(activations="int"))
    made = settings(Scheme(activations="int"))
    of_class = made["config_groups"]["group_0"]
    fp8 = {**of_class["input_activations"], "type": "float"}
    made["config_groups"] |= {
        "group_1": {**of_class, "targets": ["re:.*mlp.*"], "input_activations": fp8},
        "group_2": {**of_class, "targets": ["model.layers.1.mlp.down_proj"], "input_activations": None},
    }
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": made}))
    formats = identify(open_checkpoint(path)).formats
    found = {name: format.activations for name, format in formats.items() if isinstance(format, LowBit)}
    assert found["layers.0.mlp.down"] == found["layers.1.mlp.gate_up"] == "float8_e4m3fn"
    assert found["layers.1.mlp.down"] is None and found["layers.0.mixer.out"] == "int8"


def test_told_without_torch(tmp_path: Path) -> None:
    path, _ = checkpoint(tmp_path, Scheme())
    code = ("import sys; from pathlib import Path; from headrace.plan.checkpoint import identify, open_checkpoint; "
            f"m = identify(open_checkpoint(Path({str(path)!r}))); assert m.formats; sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "src"}).returncode == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized' is not supported yet"),
    ({"weights": {"num_bits": 3}}, "3 bits"),
    ({"weights": {"type": "float"}}, "type 'float'"),
    ({"weights": {"strategy": "tensor"}}, "strategy 'tensor'"),
    ({"weights": {"num_bits": 8}}, "8-bit weights with strategy 'group'"),
    ({"weights": {"actorder": "group"}}, "actorder 'group'"),
    ({"input_activations": {"num_bits": 8, "dynamic": False}}, "field 'input_activations' asks for activations with stored"),
    ({"input_activations": {"num_bits": 8, "dynamic": "local"}}, "activations with stored scales"),
    ({"input_activations": {"num_bits": 4, "dynamic": True}}, "symmetric activations of type 'int' with 4 bits"),
    ({"input_activations": {"num_bits": 8, "dynamic": True, "strategy": "tensor"}}, "strategy 'tensor'; symmetric int"),
    ({"input_activations": {"num_bits": 8, "dynamic": True, "symmetric": False}}, "asymmetric activations"),
    ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config has format 'sparse-24-bitmask'"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_served_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path, _ = checkpoint(tmp_path, Scheme())
    made = settings(Scheme())
    group = made["config_groups"]["group_0"]
    group["weights"] |= change.get("weights", {})
    group |= {k: v for k, v in change.items() if k == "input_activations"}
    made |= {k: v for k, v in change.items() if k in ("format", "sparsity_config")}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": made}))
    with pytest.raises(CheckpointError, match=message) as caught:
        identify(open_checkpoint(path))
    assert "quantization_config" in str(caught.value)


def test_mixtures_within_one_matrix_are_named(tmp_path: Path) -> None:
    path = make_tiny_checkpoint(tmp_path, config=SIZES)
    compress(path, Scheme(), lambda name: in_decoder(name) and "layers.3.self_attn.k_proj" not in name)
    with pytest.raises(CheckpointError, match=r"'model.layers.3.self_attn.k_proj.weight' is plain"):
        identify(open_checkpoint(path))


@pytest.mark.parametrize(("name", "message"), [
    ("model.layers.0.mlp.gate_proj.weight_scale", "'model.layers.0.mlp.gate_proj.weight_scale' is missing"),
    ("model.layers.0.mlp.gate_proj.weight_packed", "'model.layers.0.mlp.gate_proj.weight' is missing"),
    ("model.layers.0.mlp.gate_proj.weight_zero_point", "quantised unlike others"),
])
def test_missing_parts_are_named(tmp_path: Path, name: str, message: str) -> None:
    path, _ = checkpoint(tmp_path, Scheme(symmetric=False))
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        identify(open_checkpoint(path))


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", [Scheme(4, 128), Scheme(4, 32, symmetric=False), Scheme(8, 0)], ids=str)
def test_a_prepared_layer_on_a_gpu(scheme: Scheme) -> None:
    """Loaded rows are put into the kernels' order, and give what they gave before."""
    parts, meant = quantise(torch.randn(144, 384), scheme)
    layer = Linear(384, 144, dtype=torch.bfloat16, device=torch.device("cuda"))
    layer.allocate(LowBit(scheme.bits, scheme.group, not scheme.symmetric, "bfloat16"))
    packed = parts.pop("weight_packed")
    parts["weight_packed"] = packed if scheme.bits == 4 else packed.view(torch.int8) ^ -128
    for name, parameter in layer.named_parameters():
        parameter.data.copy_(parts[name])
    layer.prepare()
    assert layer.prepared
    x = torch.randn(5, 384, dtype=torch.bfloat16)
    expected = x.double() @ meant.T
    error = (layer(x.cuda()).double().cpu() - expected).abs()
    assert float(error.max()) <= 0.03 * float(expected.square().mean().sqrt())


def test_every_tensor_of_the_files_is_accounted_for(tmp_path: Path) -> None:
    """Those of a drafting head that is quantised too, and the shapes that are implied."""
    path = make_tiny_checkpoint(tmp_path, config=SIZES, mtp=True)
    compress(path, Scheme(), in_decoder)
    model = identify(open_checkpoint(path))
    left_out = [name for _, names in model.weight_map.left_out for name in names]
    named = [*(weight.source for weight in model.weight_map.weights), *model.weight_map.kept, *left_out]
    assert sorted(named) == sorted(model.checkpoint.tensors)
    assert any(name.startswith("mtp.") and name.endswith("weight_packed") for name in model.weight_map.kept)
    plain = identify(open_checkpoint(make_tiny_checkpoint(tmp_path / "plain", config=SIZES, mtp=True)))
    counts = [{c.name: c.parameters for c in tensor_classes(m) if c.use == "served"} for m in (model, plain)]
    assert counts[0] == counts[1]
