"""Frequencies of the rotary position embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.models.spec import RopeSpec


def frequencies(spec: RopeSpec, device: torch.device) -> Tensor:
    """Angle per position of each pair of dimensions, [rotary_dims / 2] float32.

    float32 throughout, also in a float64 model: models are trained with angles rounded so. Sources: Su et al., RoFormer
    (2021); "linear" divides every frequency by the factor (position interpolation); "llama3" divides the slow ones (Llama
    3.1: wavelengths above original_context / low_freq_factor), keeps the fast ones, and blends those between.
    """
    exponents = torch.arange(0, spec.rotary_dims, 2, dtype=torch.float32, device=device) / spec.rotary_dims
    plain = 1.0 / spec.theta**exponents
    if spec.scaling == "linear":
        return plain / spec.factor
    if spec.scaling == "llama3":
        return _llama3(plain, spec)
    return plain


def _llama3(plain: Tensor, spec: RopeSpec) -> Tensor:
    wavelength = 2 * math.pi / plain
    turns = spec.original_context / wavelength  # over the context the model was first trained with
    keep = ((turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * plain / spec.factor + keep * plain
