"""Arithmetic on tiles that gives the same numbers compiled and under Triton's interpreter, on every card.

To be called from @triton.jit functions. The interpreter (Triton 3.5 to 3.9) computes with bf16 as if its bits were integers and
cuts fp32 off when it stores bf16: so widen after each load (`tl.load(...).to(tl.float32)` is right everywhere), multiply
matrices with `dot`, and store with `store`. fp8 e4m3 is bytes here: cards before sm_89 have no such type.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether this process runs kernels under the interpreter (TRITON_INTERPRET=1 before the first import of Triton)."""


@triton.jit
def await_previous(EARLY: tl.constexpr):
    """Returns when all that the kernels before wrote is there. EARLY: whether this one may run beside them (`dispatch.early`).

    Every program must come here on every path, before it writes anything, and before it reads what a kernel that may still
    run writes: a kernel that does not wait would let those behind it run before those in front of it have finished.
    """
    if EARLY:
        cuda.gdc_wait()


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """The kernel behind this one may start once every program has come here; what they write later it sees after its wait."""
    if EARLY:
        cuda.gdc_launch_dependents()


@triton.jit
def dot(a, b, acc, precision: tl.constexpr):
    """acc + a @ b in fp32. precision tells how fp32 operands are multiplied: "ieee", or tensor cores' "tf32", "tf32x3"."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a, b, acc, input_precision=precision)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """x as dtype (fp32, fp16 or bf16), rounded to nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        wide = x.to(tl.float32)
        bits = wide.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return tl.where(wide != wide, wide, bits.to(tl.float32, bitcast=True)).to(tl.bfloat16)
    else:
        return x.to(dtype)


@triton.jit
def store(pointers, x, mask=None):
    """Stores x rounded to the memory's type."""
    tl.store(pointers, narrow(x, pointers.dtype.element_ty), mask=mask)


@triton.jit
def round_even(x):
    """fp32 x with |x| < 2^22 as the nearest int32, ties to even: 1.5 * 2^23 is added, whose fp32 neighbours are 1 apart."""
    return (x.to(tl.float32) + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def e4m3_over_256(codes):
    """fp8 e4m3 bytes (uint8) as fp16 values / 256, exactly; the factor belongs in a scale that is applied anyway.

    The bits of e4m3 (bias 7) are moved to fp16's places (bias 15). The NaN codes read as +-480 / 256; `to_e4m3` makes them
    only of NaNs.
    """
    high = codes.to(tl.uint16) << 8
    shifted = (high & 0x8000) | ((high & 0x7F00) >> 1)
    return shifted.to(tl.float16, bitcast=True)


@triton.jit
def e4m3(codes):
    """fp8 e4m3 bytes (uint8) as fp16, exactly; the NaN codes read as +-480."""
    return e4m3_over_256(codes) * 256.0


@triton.jit
def to_e4m3(x):
    """fp32 as fp8 e4m3 bytes (uint8): nearest, ties to even, +-448 beyond the range, NaN to its code.

    Normal numbers carry a half unit of their 3-bit mantissa upwards in fp32's bits; below 2^-6 codes count units of 2^-9,
    which is the distance between fp32 neighbours of 2^14.
    """
    wide = x.to(tl.float32)
    sign = (wide.to(tl.uint32, bitcast=True) >> 24) & 0x80
    size = tl.minimum(tl.abs(wide), 448.0)
    bits = size.to(tl.uint32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960  # (127 - 7) << 3
    small = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, small, normal)
    return (sign | tl.where(wide != wide, 0x7F, code)).to(tl.uint8)
