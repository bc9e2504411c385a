"""What the tests of Triton kernels share: which operations have one, and how a variant is compiled without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from headrace.kernels import KERNELS
from headrace.kernels.variant import Variant


def module(op: str, part: str) -> ModuleType:
    return importlib.import_module(f"headrace.kernels.{op}.{part}")


TRITON_OPS = tuple(op for op in KERNELS if importlib.util.find_spec(f"headrace.kernels.{op}.triton"))


def shared_cases(op: str) -> tuple[Any, ...]:
    """The cases of an operation that has one formula to compare with; the others bring a suite of their own."""
    cases = module(op, "cases")
    return tuple(cases.CASES) if hasattr(cases, "slow") else ()


def moved(given: dict[str, Any], device: str) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in given.items()}


def widened(given: dict[str, Any]) -> dict[str, Any]:
    """The same numbers, with 16-bit tensors as float32."""
    return {name: _wide(value) if isinstance(value, Tensor) else value for name, value in given.items()}


def _wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a variant became for a target. stack_bytes: of a thread, spilled registers included."""

    shared_bytes: int
    registers: int
    stack_bytes: int
    ptx: str


def compile_variant(variant: Variant, capability: int) -> Compiled:
    from triton import compile as triton_compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    variant = variant.on(capability)
    names = variant.kernel.arg_names
    assert set(names) == variant.signature.keys() | variant.constants.keys(), f"{variant.name}: arguments"
    signature = {name: variant.signature.get(name, "constexpr") for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in variant.divisible}
    source = ASTSource(variant.kernel, signature, dict(variant.constants), attributes)
    options = {
        "num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": variant.fp_fusion
    }
    kernel = triton_compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = _resources(kernel.asm["cubin"])
    return Compiled(kernel.metadata.shared, registers, stack, kernel.asm["ptx"])


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes (what is in local memory, too) of a thread, as cuobjdump of Triton's wheel reads them."""
    import triton.backends.nvidia

    cuobjdump = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        Path(path).write_bytes(cubin)
        listing = subprocess.run([cuobjdump, "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
    used = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", listing)
    assert used, listing
    return int(used[1]), int(used[2]) + int(used[3])


def compile_named(op: str, name: str, capability: int) -> Compiled:
    """For other processes: kernels cannot be sent to them, and not every compiler's error can come back."""
    variant = next(v for v in module(op, "triton").VARIANTS if v.name == name)
    try:
        return compile_variant(variant, capability)
    except Exception as error:
        raise RuntimeError(f"sm_{capability}: {type(error).__name__}: {error}") from None
