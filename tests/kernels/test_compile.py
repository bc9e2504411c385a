"""Every variant of every Triton kernel compiles for every card that it is for, without a GPU, within that card's means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from tests.support.triton_kernels import TRITON_OPS, Compiled, compile_named, compile_variant, module

from headrace.kernels.variant import SHARED_BYTES, TARGETS, Variant

pytest.importorskip("triton", reason="Triton has no build for this system")

Build = Callable[[str, int], Compiled]

VARIANTS: dict[str, Variant] = {
    f"{op}/{variant.name}": variant for op in TRITON_OPS for variant in getattr(module(op, "triton"), "VARIANTS", ())
}
NARROW = {name: variant for name, variant in VARIANTS.items() if set(variant.targets) != set(TARGETS)}
EIGHT_OR_FOUR_BIT_MMA = re.compile(r"^\s*(wgmma\.)?mma[.\w:]*\.(e4m3|e5m2|e2m1)", re.MULTILINE)


def test_every_kernel_says_its_variants() -> None:
    for op in TRITON_OPS:
        names = [variant.name for variant in module(op, "triton").VARIANTS]
        assert names and len(set(names)) == len(names), op


@pytest.fixture(scope="module")
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    """Compiles the variants that the chosen tests ask for, on all processors at once."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    names = [call.params["name"] for call in calls if call is not None and "name" in call.params]
    pool = ProcessPoolExecutor(min(8, os.cpu_count() or 1), get_context("spawn"))
    jobs = {(name, target): pool.submit(compile_named, *name.split("/"), target)
            for name in names for target in VARIANTS[name].targets}
    yield lambda name, target: jobs[name, target].result()
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_compiles_for_its_targets(name: str, build: Build) -> None:
    for target in VARIANTS[name].targets:
        built = build(name, target)
        assert built.shared_bytes <= SHARED_BYTES[target], f"sm_{target}: {built.shared_bytes} bytes of shared memory"
        assert built.stack_bytes == 0, f"sm_{target}: {built.stack_bytes} bytes of stack, {built.registers} registers"


def test_only_small_float_tensor_cores_leave_cards_out(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\nvariants that are not for every card:" if NARROW else "\nevery variant is for every card")
        for name, variant in NARROW.items():
            print(f"  {name}: {', '.join(f'sm_{target}' for target in variant.targets)}; {variant.without}")
    for name, variant in NARROW.items():
        assert variant.targets and set(variant.targets) < set(TARGETS) and variant.without, name
        ptx = compile_variant(variant, variant.targets[0]).ptx
        assert EIGHT_OR_FOUR_BIT_MMA.search(ptx), f"{name} leaves cards out but multiplies no fp8 or fp4"


def test_the_checks_see_a_spill_and_a_small_float_product() -> None:
    """The two readings that the checks rest on, on kernels that have what they must find."""
    from tests.kernels import probes

    assert compile_variant(probes.SPILLING, 86).stack_bytes > 0
    product = compile_variant(probes.FP8_PRODUCT, 89)
    assert EIGHT_OR_FOUR_BIT_MMA.search(product.ptx)
    assert not EIGHT_OR_FOUR_BIT_MMA.search(compile_variant(probes.FP16_PRODUCT, 89).ptx)
