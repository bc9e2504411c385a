"""Linear layers with 8-bit activations on a GPU: `PYTHONPATH=src:. python benchmarks/kernels/eight_bit_linear.py check table`.

check: formats and numbers of rows on NaN-filled outputs, against the float32 reference on the same codes. table, rows: the
whole operation (quantising and product) on both types of codes and by 16-bit kernels, beside low_bit_linear alone; weights of 4
bits in groups of 128, or of 8 bits with a scale a row. quantise: that part alone. library: cuBLAS's fp8 products with scales of
128 inputs and of rows, weights already in fp8. ampere: the sm_86 form of int8 through the driver's compiler. A time is the
median of graph replays over weights that do not fit the L2 cache together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.kernels import low_bit_linear as low_bit
from benchmarks.kernels.low_bit_linear import SHAPES, Weight, copies_beyond_l2, make_weight, median_us
from torch import Tensor

from headrace.kernels import cuda_function
from headrace.kernels.card import card
from headrace.kernels.eight_bit_linear import cuda, eight_bit_linear, reference
from headrace.kernels.quantise_rows import cuda as quantise

CODES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)


def check() -> None:
    worst = (0.0, 0.0, "")
    for outputs, inputs, group, zeros, dtype, scale in low_bit.CHECKED:
        weight = make_weight(outputs, inputs, group, zeros=zeros, scale=scale)
        for rows in (1, 3, 8, 9, 17, 33, 64, 65, 256, 300):
            x = torch.randn(rows, inputs + 8, device="cuda", dtype=dtype)[:, :inputs]
            for name, codes in CODES.items():
                poisoned = torch.full((rows, outputs), float("nan"), device="cuda", dtype=dtype)
                del poisoned  # what the allocator hands out next
                y = eight_bit_linear(x, weight.packed, weight.scale, weight.zero, codes=codes, tiled=True)
                wide = reference.eight_bit_linear(x.float(), weight.packed, weight.scale, weight.zero, codes=codes, tiled=True)
                largest, mean = low_bit.errors(y, wide)
                what = f"{name} {dtype} scale {scale} {outputs}x{inputs} group {group} zeros {zeros} rows {rows}"
                if not (largest <= 0.02 and mean <= 0.003):
                    print(f"WRONG {what}: {largest:.4f} {mean:.5f}")
                worst = max(worst, (largest, mean, what))
    print(f"check: worst largest error {worst[0]:.4%} of rms, its mean {worst[1]:.4%} ({worst[2]})")


def _rate(us: float, rows: int, outputs: int, inputs: int) -> str:
    return f"{us:.1f} us ({2 * rows * outputs * inputs / us / 1e6:.0f} TFLOP/s)"


def weights_of(outputs: int, inputs: int, group: int = 128) -> list[Weight]:
    first = make_weight(outputs, inputs, group)
    return [first] + [make_weight(outputs, inputs, group) for _ in range(copies_beyond_l2(first.nbytes) - 1)]


def whole(x: Tensor, weights: list[Weight], codes: torch.dtype, way: Callable[..., Tensor]) -> float:
    """Microseconds of quantising and product."""
    return median_us([partial(way, x, w.packed, w.scale, w.zero, codes) for w in weights], 5)


def table(group: int = 128) -> None:
    for outputs, inputs in SHAPES:
        weights = weights_of(outputs, inputs, group)
        for rows in ROWS:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            found = {
                name: whole(x, weights, codes, cuda.on_codes) for name, codes in CODES.items()
                if cuda.multiplies(weights[0].packed, codes, card(x.device).capability)
            }
            found["fp8 in 16 bits"] = whole(x, weights, CODES["fp8"], cuda.in_sixteen_bits)
            found["16 bits"] = low_bit.ours_us(x, weights)
            floor = low_bit.floor_us(rows, outputs, inputs, weights[0].nbytes)
            line = "; ".join(f"{name} {_rate(us, rows, outputs, inputs)}" for name, us in found.items())
            print(f"{outputs}x{inputs} rows {rows}: floor in 16 bits {floor:.1f} us; {line}", flush=True)


def quantising() -> None:
    for inputs in (5120, 6144, 17_408):
        for rows in (1, 64, 1024, 8192):
            xs = [torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
                  for _ in range(min(64, copies_beyond_l2(2 * rows * inputs)))]
            us = median_us([partial(quantise.quantise_rows, x, torch.float8_e4m3fn, tiled=True) for x in xs], 5)
            floor = 3 * rows * inputs / low_bit.BYTES_PER_S * 1e6
            print(f"quantise {rows} x {inputs}: {us:.2f} us, floor {floor:.2f}", flush=True)


def library() -> None:
    for outputs, inputs in SHAPES:
        weight = torch.randint(-8, 8, (outputs, inputs), device="cuda").to(torch.float8_e4m3fn)
        groups = inputs // 128
        for rows in (1024, 2048, 8192):
            x = (100 * torch.randn(rows, inputs, device="cuda")).clamp(-448, 448).to(torch.float8_e4m3fn)
            blocks = [torch.rand(groups, n, device="cuda").T for n in (rows, outputs)]
            one = torch.nn.functional.ScalingType.BlockWise1x128
            scaled = partial(torch.nn.functional.scaled_mm, x, weight.T, blocks[0], one, blocks[1], one,
                             output_dtype=torch.bfloat16)
            by_row = partial(torch._scaled_mm, x, weight.T, torch.rand(rows, 1, device="cuda"),
                             torch.rand(1, outputs, device="cuda"), out_dtype=torch.bfloat16)
            found = {"scales of 128 inputs": median_us([scaled] * 2, 5), "scales of rows": median_us([by_row] * 2, 5)}
            line = "; ".join(f"{name} {_rate(us, rows, outputs, inputs)}" for name, us in found.items())
            print(f"cuBLAS {outputs}x{inputs} rows {rows}: {line}", flush=True)


def ampere() -> None:
    """The form for sm_86, as PTX that the driver compiles for this card."""
    with patch.object(cuda_function, "architecture", lambda capability, *, wgmma: "compute_86"):
        _ampere()


def _ampere() -> None:
    for outputs, inputs in SHAPES:
        weights = weights_of(outputs, inputs)
        for rows in (1, 8, 16, 64, 2048):
            way = cuda.few_rows if rows <= cuda.MOST_FEW_ROWS else cuda.many_rows
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            y = torch.empty(rows, outputs, device="cuda", dtype=x.dtype)
            made = quantise.quantise_rows(x, torch.int8, tiled=True)
            us = median_us([partial(way, *made, w.packed, w.scale, w.zero, y, torch.int8) for w in weights], 5)
            rate = f"{weights[0].nbytes / us / 1e6:.2f} TB/s"
            print(f"sm_86 int8 {outputs}x{inputs} rows {rows}: {_rate(us, rows, outputs, inputs)}, {rate}", flush=True)


PARTS: dict[str, Callable[[], Any]] = {
    "check": check, "table": table, "rows": partial(table, 0), "quantise": quantising, "library": library, "ampere": ampere,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    for part in parser.parse_args().parts:
        began = time.perf_counter()
        with torch.no_grad():
            PARTS[part]()
        print(f"-- {part} took {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
