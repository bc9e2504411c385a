"""Plain weights in a floating-point type."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import quant
from headrace.models.spec import WeightMap

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.kernels.rms_norm import Activations, NormWeight, PendingNorm


def detect(config: Mapping[str, Any]) -> bool:
    return not quant.quantization(config)


def plain_names(names: Collection[str]) -> Collection[str]:
    return names


def stored(
    weight_map: WeightMap, config: Mapping[str, Any], tensors: Mapping[str, Any]
) -> tuple[WeightMap, Mapping[str, quant.LinearFormat]]:
    return weight_map, {}


@dataclass(frozen=True, slots=True)
class Plain:
    """One matrix, in the model's type."""

    def tensors(self, outputs: int, inputs: int) -> Mapping[str, quant.Stored]:
        return {"weight": ((outputs, inputs), None)}

    def prepare(self, parameters: Mapping[str, Tensor], inputs: int) -> bool:
        return False

    def apply(self, parameters: Mapping[str, Tensor], x: Activations, *, prepared: bool) -> Tensor:
        from headrace.kernels.linear import linear  # here, since a checkpoint's format is told without torch

        return linear(x, parameters["weight"])

    def form_of(
        self, parameters: Mapping[str, Tensor], x: Tensor, *, prepared: bool, gated: bool = False, beside: Tensor | None = None
    ) -> Hashable:
        from headrace.kernels.linear import form_of

        return form_of(x, parameters["weight"])

    def apply_beside(
        self, parameters: Mapping[str, Tensor], x: Activations, weight: Tensor, *, prepared: bool
    ) -> tuple[Tensor, Tensor] | None:
        return None

    def apply_norm(
        self, parameters: Mapping[str, Tensor], x: Tensor, residual: Tensor, norm: NormWeight, *, prepared: bool
    ) -> tuple[PendingNorm, Tensor] | None:
        return None

    def reads_pending(self, *, prepared: bool, beside: Tensor | None = None) -> bool:
        return False

    def apply_gated(self, parameters: Mapping[str, Tensor], x: Activations, *, prepared: bool) -> Tensor:
        from headrace.kernels.silu_mul import silu_mul

        return silu_mul(self.apply(parameters, x, prepared=prepared))

    @property
    def rounds_inputs(self) -> bool:
        return False

    def apply_after_gate(self, parameters: Mapping[str, Tensor], gate_up: Tensor, *, prepared: bool) -> Tensor:
        from headrace.kernels.silu_mul import silu_mul

        return self.apply(parameters, silu_mul(gate_up), prepared=prepared)
