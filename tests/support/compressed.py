"""Checkpoints of compressed-tensors made from plain ones: chosen matrices rounded to integers, and packed as they pack them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True)
class Scheme:
    """group 0: one scale a row. packed: pack-quantized, else int-quantized. activations: "int" or "float" of 8 bits, if any."""

    bits: int = 4
    group: int = 32
    symmetric: bool = True
    scale: torch.dtype = torch.bfloat16
    packed: bool = True
    activations: str | None = None


def compress(directory: Path, scheme: Scheme, quantised: Callable[[str], bool]) -> dict[str, Tensor]:
    """Rewrite the checkpoint's chosen linear layers (by name, without ".weight"); the tensors that it now stands for."""
    file = directory / "model.safetensors"
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    for name, tensor in load_file(file).items():
        base = name.removesuffix(".weight")
        if name.endswith("proj.weight") and quantised(base):
            parts, meant[name] = quantise(tensor, scheme)
            stored |= {f"{base}.{part}": value for part, value in parts.items()}
        else:
            stored[name] = meant[name] = tensor
    save_file(stored, file, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": settings(scheme)}))
    return meant


def settings(scheme: Scheme) -> dict[str, Any]:
    """quantization_config as llm-compressor writes it."""
    weights = {"num_bits": scheme.bits, "type": "int", "symmetric": scheme.symmetric, "group_size": scheme.group or None,
               "strategy": "group" if scheme.group else "channel", "dynamic": False, "actorder": None}
    format = "pack-quantized" if scheme.packed else "int-quantized"
    activations = {"num_bits": 8, "type": scheme.activations, "symmetric": True, "strategy": "token", "dynamic": True}
    inputs = activations if scheme.activations else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None}


def quantise(weight: Tensor, scheme: Scheme) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors that are stored in place of a weight [O, I], and the weight that they mean, in float64."""
    outputs, inputs = weight.shape
    groups = weight.double().view(outputs, -1, scheme.group or inputs)  # [O, I / G, G]
    low, high = -(2 ** (scheme.bits - 1)), 2 ** (scheme.bits - 1) - 1
    if scheme.symmetric:
        scale, zero = groups.abs().amax(-1) / high, torch.zeros(outputs, groups.shape[1], dtype=torch.int64)
    else:
        least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = (most - least) / (high - low)
        zero = (low - least / scale).round().long().clamp(low, high)
    scale = scale.to(scheme.scale)
    codes = (groups / scale.double()[..., None] + zero[..., None]).round().long().clamp(low, high)
    meant = ((codes - zero[..., None]) * scale.double()[..., None]).view(outputs, inputs)
    codes = codes.view(outputs, inputs)
    if not scheme.packed:
        return {"weight": codes.to(torch.int8), "weight_scale": scale}, meant
    shape = torch.tensor([outputs, inputs])
    parts = {"weight_packed": pack(codes - low, scheme.bits), "weight_scale": scale, "weight_shape": shape}
    if not scheme.symmetric:
        parts["weight_zero_point"] = pack((zero - low).T, scheme.bits).T.contiguous()
    return parts, meant


def rounded(x: Tensor, activations: str, lowest: float = -127.0) -> Tensor:
    """x [T, I] as a layer with such activations sees it: compressed-tensors' calculate_qparams and fake_quantize.

    lowest: of the int8 codes, which compressed-tensors lets be -128: the difference is in numbers at -127.5.
    """
    least, most = (-128.0, 127.0) if activations == "int" else (-448.0, 448.0)
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = torch.maximum(low.abs(), high.abs()) / ((most - least) / 2)
    scale = torch.where(scale == 0, torch.finfo(x.dtype).eps, scale)
    scaled = (x / scale).clamp(least, most)
    return (scaled.round().clamp(min=lowest) if activations == "int" else scaled.to(torch.float8_e4m3fn).to(x.dtype)) * scale


def pack(codes: Tensor, bits: int) -> Tensor:
    """[N, M] of 0 ... 2^bits - 1 -> int32 [N, M bits / 32], the first in the lowest bits."""
    words = torch.zeros(len(codes), codes.shape[1] * bits // 32, dtype=torch.int64)
    for place in range(32 // bits):
        words |= codes[:, place :: 32 // bits] << bits * place
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
