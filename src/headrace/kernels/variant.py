"""What is said of a Triton kernel so that it can be compiled where there is no GPU. Importable without Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TARGETS = (86, 89, 90, 120)
"""Compute capabilities that users have: 24 GB Ampere, 24 GB Ada, Hopper, consumer Blackwell."""

SHARED_BYTES = {86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}
"""What one block may have of shared memory (CUDA programming guide, table of technical specifications)."""

EARLY_CAPABILITY = 90
"""From here on a kernel can start while the one before it still runs (programmatic dependent launch)."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tile sizes (further constants) and options that the kernel's own choice gives one kind of card."""

    constants: Mapping[str, object]
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One specialisation of a kernel that users will meet.

    kernel: the @triton.jit function. signature: its run-time arguments, name -> Triton type ("*bf16", "i32", "fp32"), in any
    order. constants: its tl.constexpr arguments, name -> value. Together they name every argument. aligned: arguments that
    Triton will find divisible by 16 at run time (pointers from PyTorch's allocator and whole widths are); None means every
    pointer. fp_fusion: as the launch's enable_fp_fusion. targets: compute capabilities that it runs on; only fp8 and fp4
    tensor-core variants may leave some out, and say why in `without`. tuned: what differs from the above on some targets.
    early: the kernel is launched with `dispatch.early`: its constant EARLY follows from the target, and it has to wait.
    reads_early: pointers that it reads before its wait.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, object] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    targets: tuple[int, ...] = TARGETS
    aligned: tuple[str, ...] | None = None
    fp_fusion: bool = True
    without: str = ""
    tuned: Mapping[int, Tuning] = field(default_factory=dict)
    early: bool = False
    reads_early: tuple[str, ...] = ()

    def on(self, target: int) -> Variant:
        """As it is compiled for a compute capability."""
        own = self.tuned.get(target, Tuning({}, self.num_warps, self.num_stages))
        early = {"EARLY": target >= EARLY_CAPABILITY} if self.early else {}
        constants = {**self.constants, **own.constants, **early}
        return replace(self, constants=constants, num_warps=own.num_warps, num_stages=own.num_stages)

    @property
    def divisible(self) -> tuple[str, ...]:
        """Arguments to compile as divisible by 16."""
        if self.aligned is not None:
            return self.aligned
        return tuple(name for name, type_ in self.signature.items() if type_.startswith("*"))
