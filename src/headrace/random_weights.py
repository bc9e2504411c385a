"""Weights for a declared shape without a checkpoint, made where the parameters are: for benchmarks of speed and memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.layers.linear import Linear
from headrace.layers.norm import RmsNorm
from headrace.models.decoder import Decoder
from headrace.speculate.dflash_model import DFlashModel
from headrace.speculate.mtp import MtpModule

_ADDED = tuple(f"{path}.weight{suffix}" for path in (".mixer.out", ".mlp.down") for suffix in ("", "_scale"))
"""Matrices whose products are added to the residual sum."""


@torch.no_grad()
def make_weights(decoder: Decoder | MtpModule | DFlashModel, seed: int = 0) -> None:
    """Fill every parameter, the same on a device each time, so that activations keep their scale through the layers.

    Matrices are normal over the square root of their inputs. Norms multiply by about one, and decays are in the range of
    trained models: a_log gives rates of 1 to 7, dt_bias steps about 0.05. What layers add to the residual sum is small beside
    it (GPT-2's scaling: over the square root of the number of additions), or rounding would grow from layer to layer as it does
    in no trained model. Not where the head is the embedding: there the input's token would always be the likeliest.
    """
    spec = decoder.spec
    tied = not isinstance(decoder, DFlashModel) and decoder.spec.tied
    gain = 1.0 if tied else (2 * len(spec.layers) * spec.hidden) ** -0.5  # embeddings are 1 over the root of hidden
    centres = {f"{name}.weight": 1 - layer.offset for name, layer in decoder.named_modules() if isinstance(layer, RmsNorm)}
    generators: dict[torch.device, torch.Generator] = {}
    for name, parameter in decoder.named_parameters():
        generator = generators.setdefault(parameter.device, torch.Generator(parameter.device).manual_seed(seed))
        if name.endswith((".weight_packed", ".weight_zero_point")):
            limits = torch.iinfo(parameter.dtype)
            parameter.data.random_(limits.min, limits.max + 1, generator=generator)
        elif name.endswith(".weight_scale"):
            layer = decoder.get_submodule(name.removesuffix(".weight_scale"))
            assert isinstance(layer, Linear)
            _fill_scales(parameter.data, layer.inputs, layer.get_parameter("weight_packed").dtype, generator)
            parameter.data.mul_(gain if name.endswith(_ADDED) else 1.0)
        elif name in centres:
            parameter.data.normal_(centres[name], 0.1, generator=generator)
        else:
            _fill(name, parameter.data, generator, gain if name.endswith(_ADDED) else 1.0)


def _fill_scales(data: Tensor, inputs: int, packed: torch.dtype, generator: torch.Generator) -> None:
    """So that weights of random bits have a variance of about 1 / inputs: 16 codes vary by 4.6, 256 by 74. Of either sign: the
    mean of 4-bit codes is not zero, and outputs would all have the same part of their inputs' mean.
    """
    data.uniform_(-1.0, 1.0, generator=generator).add_(data.sign(), alpha=0.5)
    data.mul_(inputs**-0.5 / (4.6 if packed == torch.int32 else 74.0))


def _fill(name: str, data: Tensor, generator: torch.Generator, gain: float) -> None:
    """gain: of a matrix."""
    if name.endswith("a_log"):
        data.uniform_(0.0, 2.0, generator=generator)
    elif name.endswith("dt_bias"):
        data.normal_(-3.0, 0.5, generator=generator)
    elif name.endswith("norm_weight"):  # of the gated norm, which multiplies by it as it is
        data.normal_(1.0, 0.1, generator=generator)
    elif data.ndim == 1:
        data.normal_(0.0, 0.1, generator=generator)
    else:
        data.normal_(0.0, gain / math.sqrt(data.shape[-1]), generator=generator)
