"""Low-bit linear on a GPU: `PYTHONPATH=src:. python benchmarks/kernels/low_bit_linear.py check few hopper table ...`.

check: shapes small and large on NaN-filled outputs, against float32. few, hopper, workspace: every form of that kernel on
the shapes of a 27B model, fastest first. table: what the operation does by itself, beside cuBLAS on plain weights. formats: the
other formats. libraries: humming-kernels, gemlite and PyTorch's int4 product on the same shapes, where they are installed. A
time is the median of graph replays over weights that do not fit the L2 cache together. (Forms for sm_86: ampere.py.)
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headrace.kernels.card import card
from headrace.kernels.low_bit_linear import cuda, few, low_bit_linear, reference, tile_forms
from headrace.kernels.low_bit_linear.forms import FewRows
from headrace.kernels.low_bit_linear.tile_forms import HopperRows

SHAPES = ((34_816, 5120), (5120, 17_408), (16_384, 5120), (5120, 6144))
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 8192)
BYTES_PER_S, FLOPS_PER_S = 3.9e12, 790e12
L2_BYTES = 60e6


@dataclass(frozen=True)
class Weight:
    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    nbytes: int


def make_weight(
    outputs: int, inputs: int, group: int = 128, *, zeros: bool = False, scale: torch.dtype = torch.bfloat16
) -> Weight:
    """Random bits: any bits are tiled weights."""
    if group:
        packed = torch.randint(-(2**31), 2**31 - 1, (outputs, inputs // 8), dtype=torch.int32, device="cuda")
    else:
        packed = torch.randint(-128, 127, (outputs, inputs), dtype=torch.int8, device="cuda")
    groups = inputs // group if group else 1
    spread = inputs**-0.5 / (4.6 if group else 74)
    scales = ((torch.rand(outputs, groups, device="cuda") + 0.5) * spread).to(scale)
    zero = torch.randint(-(2**31), 2**31 - 1, (outputs // 8, groups), dtype=torch.int32, device="cuda") if zeros else None
    tensors = [t for t in (packed, scales, zero) if t is not None]
    return Weight(packed, scales, zero, sum(t.numel() * t.element_size() for t in tensors))


def copies_beyond_l2(nbytes: int) -> int:
    return max(2, int(4 * L2_BYTES / nbytes) + 1)


WARM_UP_S = 0.03  # after a compile the clocks are down
LEAST_REPLAY_US = 1500  # a replay's own start and end take some 20


def median_us(calls: list[Callable[[], Any]], replays: int = 7) -> float:
    """Microseconds of one call, when all of them follow each other in a captured graph, again and again if they are short."""
    graph = captured(calls)
    until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until:
        graph.replay()
        torch.cuda.synchronize()
    rounds = int(LEAST_REPLAY_US / replay_us(graph)) + 1
    if rounds > 1:
        graph = captured(calls * rounds)
        graph.replay()
    times = sorted(replay_us(graph) for _ in range(replays))
    return times[replays // 2] / (len(calls) * rounds)


def captured(calls: list[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def floor_us(rows: int, outputs: int, inputs: int, weight_bytes: int) -> float:
    moved = weight_bytes + 2 * rows * (outputs + inputs)
    return max(moved / BYTES_PER_S, 2 * rows * outputs * inputs / FLOPS_PER_S) * 1e6


# check


def errors(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """Largest and mean error over the rms of what is expected; NaN if any is. Where a number's own rounding is coarser than 2 %
    of the rms, one unit of its last place counts as 2 %.
    """
    rms = expected.pow(2).mean().sqrt()
    difference = (found.float() - expected).abs() / rms
    coarse = (expected.abs() / rms * torch.finfo(found.dtype).eps / 0.02).clamp(min=1)
    return float((difference / coarse).max()), float(difference.mean())


CHECKED = (  # outputs, inputs, group, zeros, activations, scales
    (144, 256, 32, True, torch.bfloat16, torch.bfloat16), (272, 640, 128, False, torch.float16, torch.float16),
    (400, 1024, 64, True, torch.float16, torch.bfloat16), (176, 384, 0, False, torch.bfloat16, torch.float16),
    (5120, 6144, 128, False, torch.bfloat16, torch.bfloat16), (400, 512, 0, False, torch.float16, torch.float16),
    (272, 512, 32, False, torch.bfloat16, torch.float16),
)


def check() -> None:
    worst = (0.0, 0.0, "")
    for outputs, inputs, group, zeros, dtype, scale in CHECKED:
        weight = make_weight(outputs, inputs, group, zeros=zeros, scale=scale)
        dense = reference.dequantized(weight.packed, weight.scale, weight.zero, tiled=True, dtype=torch.float32)
        for rows in (1, 3, 8, 9, 17, 33, 64, 65, 256, 300):
            x = torch.randn(rows, inputs + 8, device="cuda", dtype=dtype)[:, :inputs]
            poisoned = torch.full((rows, outputs), float("nan"), device="cuda", dtype=dtype)
            del poisoned  # what the allocator hands out next
            y = low_bit_linear(x, weight.packed, weight.scale, weight.zero, tiled=True)
            name = f"{dtype} scale {scale} {outputs}x{inputs} group {group} zeros {zeros} rows {rows}"
            largest, mean = errors(y, x.float() @ dense.T)
            if not (largest <= 0.02 and mean <= 0.003):
                print(f"WRONG {name}: {largest:.4f} {mean:.5f}")
            worst = max(worst, (largest, mean, name))
    print(f"check: worst largest error {worst[0]:.4%} of rms, its mean {worst[1]:.4%} ({worst[2]})")


# sweep

FORMATS = {"GROUP": 128, "ZEROS": 0, "BITS": 4}
Way = Callable[..., None]


def sweep(title: str, way: Way, rows_list: tuple[int, ...], forms: Callable[[int, int], Iterator[Any]]) -> None:
    """Times every form that forms(rows, outputs) yields, on every shape."""
    for outputs, inputs in SHAPES:
        weights = [make_weight(outputs, inputs) for _ in range(copies_beyond_l2(outputs * inputs // 2))]
        for rows in rows_list:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            y = torch.empty(rows, outputs, device="cuda", dtype=x.dtype)
            found = [(median_us([partial(way, x, w.packed, w.scale, w.zero, y, form) for w in weights], 5), form)
                     for form in forms(rows, outputs)]
            found.sort(key=lambda pair: pair[0])
            best = "; ".join(f"{us:.2f} {_short(form)}" for us, form in found[:5])
            us = found[0][0]
            print(f"{title} {outputs}x{inputs} rows {rows}: {weights[0].nbytes / us / 1e6:.2f} TB/s, "
                  f"{2 * rows * outputs * inputs / us / 1e6:.0f} TFLOP/s: {best}; slowest {found[-1][0]:.1f}", flush=True)
        del weights


def _short(form: Any) -> str:
    return str(form) if isinstance(form, int) else "(" + ", ".join(str(getattr(form, name)) for name in form.__slots__) + ")"


def few_forms(rows: int, outputs: int) -> Iterator[FewRows]:
    for tiles, warps, stages, parts in itertools.product((1, 2, 4), (4, 8, 16), (2, 3, 4), (1, 2, 3)):
        form = FewRows(tiles, warps, stages, parts)
        if form.shared_bytes(FORMATS, rows) <= 101_376 and (parts == 1 or parts * outputs <= 16_384):
            yield form


def hopper_forms(rows: int, outputs: int) -> Iterator[HopperRows]:
    """Those that decode the weights once for up to 128 rows."""
    del outputs
    for form in tile_forms.HOPPER_FORMS:
        if form.block_rows >= min(rows, 128):
            yield tile_forms.fitting(form, FORMATS, card(torch.device("cuda")))


def workspaces(rows: int, outputs: int) -> Iterator[int]:
    return (mib * 2**20 for mib in (64, 128, 512))


# table


def line(title: str, us: float, rows: int, outputs: int, inputs: int, nbytes: int) -> str:
    floor = floor_us(rows, outputs, inputs, nbytes)
    tflops = 2 * rows * outputs * inputs / us / 1e6
    rates = f"{nbytes / us / 1e6:.2f} TB/s, {tflops:.0f} TFLOP/s"
    return f"{title} rows {rows}: {us:.2f} us, floor {floor:.2f} ({us / floor:.2f} x), {rates}"


def ours_us(x: Tensor, weights: list[Weight]) -> float:
    return median_us([partial(low_bit_linear, x, w.packed, w.scale, w.zero, tiled=True) for w in weights])


def table(rows_list: tuple[int, ...] = ROWS) -> None:
    for outputs, inputs in SHAPES:
        weights = [make_weight(outputs, inputs) for _ in range(copies_beyond_l2(outputs * inputs // 2))]
        dense = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        for rows in rows_list:
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            print(line(f"{outputs}x{inputs}", ours_us(x, weights), rows, outputs, inputs, weights[0].nbytes), flush=True)
            plain = median_us([partial(torch.mm, x, d.T) for d in dense * 2])
            print(line("  cuBLAS, bf16", plain, rows, outputs, inputs, 2 * outputs * inputs), flush=True)
        del weights, dense


def table_formats() -> None:
    """The other formats on the widest shape."""
    outputs, inputs = SHAPES[0]
    for group, zeros in ((32, False), (64, False), (128, True), (32, True), (0, False)):
        made = make_weight(outputs, inputs, group, zeros=zeros)
        weights = [made] + [make_weight(outputs, inputs, group, zeros=zeros) for _ in range(copies_beyond_l2(made.nbytes) - 1)]
        for rows in (1, 8, 64, 2048):
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            print(line(f"group {group} zeros {zeros}", ours_us(x, weights), rows, outputs, inputs, made.nbytes), flush=True)


# libraries


@contextlib.contextmanager
def within(seconds: int, name: str) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"{name}: more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    except Exception as error:  # a library that fails is a result
        print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    finally:
        signal.alarm(0)


def humming(rows_list: tuple[int, ...]) -> None:
    from humming.layer import HummingLayer

    for outputs, inputs in SHAPES:
        layers = []
        began = time.perf_counter()
        for _ in range(copies_beyond_l2(outputs * inputs // 2)):
            layer = HummingLayer(shape_n=outputs, shape_k=inputs, weight_config={"dtype": "uint4", "group_size": 128},
                                 torch_dtype=torch.bfloat16).cuda()
            layer.load_from_unquantized(torch.randn(outputs, inputs, dtype=torch.bfloat16, device="cuda"))
            layer.transform()
            layers.append(layer)
        torch.cuda.synchronize()
        print(f"humming {outputs}x{inputs}: {len(layers)} layers made in {time.perf_counter() - began:.1f} s")
        measure_library("humming", outputs, inputs, rows_list, layers)


def gemlite(rows_list: tuple[int, ...]) -> None:
    import gemlite as library

    for outputs, inputs in SHAPES[2:3]:
        layers = []
        for _ in range(copies_beyond_l2(outputs * inputs // 2)):
            layer = library.GemLiteLinear(4, group_size=128, in_features=inputs, out_features=outputs,
                                          input_dtype=library.DType.BF16, output_dtype=library.DType.BF16)
            codes = torch.randint(0, 15, (outputs, inputs), dtype=torch.uint8, device="cuda")
            scales = torch.rand(outputs * inputs // 128, 1, device="cuda", dtype=torch.bfloat16) / 400
            layer.pack(codes, scales, torch.full_like(scales, 8), None)
            layers.append(layer)
        measure_library("gemlite", outputs, inputs, rows_list, layers)


def torch_int4(rows_list: tuple[int, ...]) -> None:
    for outputs, inputs in SHAPES:
        codes = torch.randint(0, 255, (outputs, inputs // 2), dtype=torch.uint8, device="cuda")
        scales = torch.rand(inputs // 128, outputs, 2, device="cuda", dtype=torch.bfloat16)
        packed = [torch._convert_weight_to_int4pack(codes, 8) for _ in range(copies_beyond_l2(outputs * inputs // 2))]
        layers = [partial(_int4_mm, p, scales) for p in packed]
        measure_library("torch int4", outputs, inputs, rows_list, layers)


def _int4_mm(packed: Tensor, scales: Tensor, x: Tensor) -> Tensor:
    return torch._weight_int4pack_mm(x, packed, 128, scales)


def measure_library(name: str, outputs: int, inputs: int, rows_list: tuple[int, ...], layers: list[Any]) -> None:
    nbytes = outputs * inputs // 2 + outputs * inputs // 64
    for rows in rows_list:
        x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
        began = time.perf_counter()
        layers[0](x)
        torch.cuda.synchronize()
        first = time.perf_counter() - began
        us = median_us([partial(layer, x) for layer in layers], 5)
        print(line(f"{name} {outputs}x{inputs}", us, rows, outputs, inputs, nbytes) + f"; first call {first:.1f} s", flush=True)


def libraries() -> None:
    with within(60, "humming"):
        humming((1, 2, 4, 8, 16, 32, 64, 256, 2048, 8192))
    with within(20, "torch int4"):
        torch_int4((1, 8, 64))
    with within(25, "gemlite"):
        gemlite((1, 8, 64))


def one() -> None:
    """For a profiler: the one-row kernel on the widest shape, and 64 rows."""
    for outputs, inputs in SHAPES[:2]:
        weight = make_weight(outputs, inputs)
        for rows in (1, 64):
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            low_bit_linear(x, weight.packed, weight.scale, weight.zero, tiled=True)
    torch.cuda.synchronize()


PARTS: dict[str, Callable[[], None]] = {
    "check": check,
    "few": partial(sweep, "few", few.few_rows, (1, 2, 4, 8), few_forms),
    "hopper": partial(sweep, "hopper", cuda.hopper_rows, (16, 32, 64, 96, 128, 256, 1024), hopper_forms),
    "workspace": partial(sweep, "workspace", cuda.through_workspace, (512, 1024, 2048, 8192), workspaces),
    "table": table, "formats": table_formats,
    "libraries": libraries, "one": one,
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
