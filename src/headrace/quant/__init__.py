"""Weight formats: one file each. This package says which one a checkpoint uses, without torch.

A format module has `detect(config)`, whether a checkpoint with this configuration is of the format; `plain_names(names)`, the
checkpoint's tensor names as they would be without it; and `stored(weight_map, config, tensors)`, the map of those names turned
into one of the tensors that there are, and the LinearFormat of every linear layer that does not keep plain weights, by path.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import CheckpointError
from headrace.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm

FORMATS = Registry("headrace.quant")

Stored = tuple[tuple[int, ...], str | None]
"""Shape of a parameter, and its type as torch names it; None is the model's."""


class LinearFormat(Protocol):
    """How one linear layer keeps its weights."""

    def tensors(self, outputs: int, inputs: int) -> Mapping[str, Stored]:
        """The layer's parameters by name. `outputs` rows are the first dimension of each, or an eighth of it."""

    def prepare(self, parameters: Mapping[str, Tensor], inputs: int) -> bool:
        """Bring loaded parameters in place into the order that the device's kernels read; whether that was done."""

    def apply(self, parameters: Mapping[str, Tensor], x: Activations, *, prepared: bool) -> Tensor:
        """x [T, inputs] -> x W^T, [T, outputs]."""

    def form_of(
        self, parameters: Mapping[str, Tensor], x: Tensor, *, prepared: bool, gated: bool = False, beside: Tensor | None = None
    ) -> Hashable:
        """What x's number of rows decides of the kernels of apply, apply_gated or apply_beside: those of equal answers are the
        same. x [T, inputs]: its numbers do not matter.
        """

    def apply_beside(
        self, parameters: Mapping[str, Tensor], x: Activations, weight: Tensor, *, prepared: bool
    ) -> tuple[Tensor, Tensor] | None:
        """(x W^T, x weight^T) for a plain weight of few outputs; None where that is no less work than one after the other."""

    def apply_norm(
        self, parameters: Mapping[str, Tensor], x: Tensor, residual: Tensor, norm: NormWeight, *, prepared: bool
    ) -> tuple[PendingNorm, Tensor] | None:
        """(the norm of total, total) with total = residual + x W^T; None where a norm apart is no more work."""

    def reads_pending(self, *, prepared: bool, beside: Tensor | None = None) -> bool:
        """Whether a PendingNorm is no more work than plain activations: for apply, or apply_beside with this weight."""

    def apply_gated(self, parameters: Mapping[str, Tensor], x: Activations, *, prepared: bool) -> Tensor:
        """x [T, inputs] -> silu of the first half of x W^T times the other half, [T, outputs / 2]."""

    @property
    def rounds_inputs(self) -> bool:
        """Whether inputs become codes, of which a gate before them is best a part."""

    def apply_after_gate(self, parameters: Mapping[str, Tensor], gate_up: Tensor, *, prepared: bool) -> Tensor:
        """gate_up [T, 2 inputs] -> kernels.silu_mul(gate_up) W^T, [T, outputs]."""


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
