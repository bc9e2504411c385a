"""Weight formats: one file each. This package says which one a checkpoint uses, without torch.

A format module has `detect(config)`, whether a checkpoint with this configuration is of the format; `tensors(outputs,
inputs)`, name -> shape of the parameters that a linear layer keeps; and `apply(parameters, x)`, the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import CheckpointError
from headrace.registry import Registry

FORMATS = Registry("headrace.quant")


def format_for(config: Mapping[str, Any]) -> str:
    """Name of the weight format of a checkpoint with this configuration (config.json).

    Raises CheckpointError naming a quantization that no format reads.
    """
    for name in FORMATS:
        if FORMATS[name].detect(config):
            return name
    method = quantization(config).get("quant_method", "without a quant_method")
    raise CheckpointError(f"config field 'quantization_config': weights quantised as {method!r} are not supported yet")


def quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantization_config of a checkpoint, its own or its text model's; empty when the weights are plain."""
    text = config.get("text_config") or {}
    return config.get("quantization_config") or text.get("quantization_config") or {}
