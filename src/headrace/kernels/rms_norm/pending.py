"""An RMS norm on its way: what follows multiplies by the rows' factors, which spares a launch between two products."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from headrace.kernels.precision import accumulation_dtype


@dataclass(frozen=True, slots=True)
class NormWeight:
    """A norm's parameters: x -> x / sqrt(mean(x^2) + eps) * (offset + weight), weight [D]."""

    weight: Tensor
    eps: float
    offset: float = 0.0

    def in_float32(self) -> NormWeight:
        return replace(self, weight=self.weight.float().contiguous())


@dataclass(frozen=True, slots=True)
class PendingNorm:
    """values [T, D] = x (offset + weight), as activations are kept; squares [T, N], float32 or wider: parts of sums of x^2.

    The norm is values / sqrt(sum(squares) / D + eps). A product may be multiplied by these factors as well.
    """

    values: Tensor
    squares: Tensor
    eps: float

    def __len__(self) -> int:
        return len(self.values)

    def normed(self) -> Tensor:
        wide = self.values.to(accumulation_dtype(self.values.dtype))
        factors = self.squares.to(wide.dtype).sum(1, keepdim=True).div_(wide.shape[1]).add_(self.eps).rsqrt_()
        return (wide * factors).to(self.values.dtype)

    @staticmethod
    def of(total: Tensor, norm: NormWeight) -> PendingNorm:
        wide = total.to(accumulation_dtype(total.dtype))
        values = wide * (norm.weight.to(wide.dtype) + norm.offset)
        return PendingNorm(values.to(total.dtype), wide.square().sum(1, keepdim=True), norm.eps)


Activations = Tensor | PendingNorm
"""What a linear layer reads."""


def finished(x: Activations) -> Tensor:
    return x.normed() if isinstance(x, PendingNorm) else x


def values_of(x: Activations) -> Tensor:
    return x.values if isinstance(x, PendingNorm) else x
