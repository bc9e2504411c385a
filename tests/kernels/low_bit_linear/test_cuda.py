"""The CUDA kernels: every form compiles for every card within its means, and on a GPU they agree with the reference."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401
from tests.support.triton_kernels import moved, widened

from headrace.kernels import KERNELS, nvrtc, silu_mul
from headrace.kernels.card import Card
from headrace.kernels.cuda_function import architecture
from headrace.kernels.low_bit_linear import (
    cases,
    cuda,
    few,
    forms,
    low_bit_linear,
    low_bit_linear_beside,
    low_bit_linear_norm,
    reference,
    tile_forms,
)
from headrace.kernels.low_bit_linear.layout import tile_
from headrace.kernels.rms_norm import NormWeight, PendingNorm
from headrace.kernels.variant import SHARED_BYTES

CARDS = (Card(86, 82, SHARED_BYTES[86]), Card(89, 128, SHARED_BYTES[89]), Card(90, 132, SHARED_BYTES[90]),
         Card(120, 170, SHARED_BYTES[120]))
SHAPES = ((34_816, 5120), (5120, 17_408), (16_384, 5120), (5120, 6144))
FORMATS = {
    "bf16 g128": {"BF16": 1, "SCALE_BF16": 1, "BITS": 4, "GROUP": 128, "ZEROS": 0},
    "fp16 g32 zeros": {"BF16": 0, "SCALE_BF16": 0, "BITS": 4, "GROUP": 32, "ZEROS": 1},
    "bf16 g64 fp16 scales": {"BF16": 1, "SCALE_BF16": 0, "BITS": 4, "GROUP": 64, "ZEROS": 0},
    "bf16 8 bits": {"BF16": 1, "SCALE_BF16": 1, "BITS": 8, "GROUP": 0, "ZEROS": 0},
    "bf16 a row": {"BF16": 1, "SCALE_BF16": 1, "BITS": 4, "GROUP": 0, "ZEROS": 0},
    "fp16 8 bits": {"BF16": 0, "SCALE_BF16": 0, "BITS": 8, "GROUP": 0, "ZEROS": 0},
    "fp16 g128 bf16 scales": {"BF16": 0, "SCALE_BF16": 1, "BITS": 4, "GROUP": 128, "ZEROS": 0},
}
PLAIN = [case for case in cases.CASES if not (case.pending or case.beside or case.norm)]
AROUND: dict[int, tuple[dict[str, bool], ...]] = {
    34_816: ({}, {"gated": True}, {"normed": True, "gated": True}), 5120: ({}, {"added": True}),
    16_384: ({}, {"normed": True}, {"normed": True, "beside": True}),
}
"""What hopper_rows has around its product, by outputs."""
Build = tuple[str, str, tuple[tuple[str, int], ...], int]  # kernel, source, macros, dynamic shared bytes
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC (package nvidia-cuda-nvrtc)")


def builds(card: Card, formats: Mapping[str, int]) -> Iterator[Build]:
    """Every kernel that the shapes lead to on this card."""
    def build(name: str, text: str, shared_bytes: int, **macros: int) -> Build:
        return name, text, tuple((formats | macros).items()), shared_bytes

    for name in ("sum_parts", "decode_weight"):
        yield build(name, cuda.source(name), 0)
    for outputs, inputs in SHAPES:
        for rows in (1, 2, 4, 8):
            for gated, normed, added, beside in (
                (False, False, False, False), (True, False, False, False), (True, True, False, False),
                (False, True, False, True), (False, False, True, False),
            ):
                form, x_rows = forms.few_rows_form(rows, outputs, inputs, formats, card, gated=gated), forms.x_rows_of(rows)
                shared = max(form.shared_bytes(formats, x_rows), forms.few_outputs_bytes(form.warps, 8) * beside)
                resident = form.resident(formats, shared, card)
                macros = few.few_macros(
                    form, x_rows, gated, resident=resident, normed=normed, added=added, beside=beside
                )
                yield build("few_rows", cuda.source("few_rows"), shared, **macros)
        for rows in (16, 17, 48, 64, 80, 128, 256, 300, 1024):
            if card.capability == 90:
                for around in AROUND[outputs] if rows <= cuda.MOST_FOLDED_ROWS else AROUND[outputs][: 1 + (outputs == 34_816)]:
                    gated, beside = "gated" in around, "beside" in around
                    if gated and not (formats["GROUP"] and tile_forms.hopper_gates(rows, outputs, inputs, card)):
                        continue
                    wide = tile_forms.hopper_rows_form(rows, outputs, inputs, formats, card, gated=gated, beside=beside)
                    text = cuda.hopper_source(wide.block_rows, bool(formats["BF16"]))
                    share = tile_forms.hopper_share(wide, rows, outputs, inputs, card, beside=beside)
                    macros = cuda.hopper_macros(wide, share, **around)
                    yield build("hopper_rows", text, wide.shared_bytes(formats), **macros)
            else:
                tall = tile_forms.ampere_rows_form(rows, formats, card)
                macros = cuda.ampere_macros(tall, tile_forms.ampere_share(tall, rows, outputs, inputs, card))
                yield build("halves", cuda.source("halves"), 0, **cuda.halves_macros(inputs))
                yield build("ampere_rows", cuda.source("ampere_rows"), tall.shared_bytes(formats), **macros)


@needs_nvrtc
@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_every_form_compiles_for_its_card(card: Card, formats: Mapping[str, int], tmp_path: Path) -> None:
    for name, text, macros, shared_bytes in dict.fromkeys(builds(card, formats)):
        cubin = nvrtc.compiled(text, dict(macros), architecture(card.capability, wgmma=name == cuda.WITH_WGMMA))
        stack, static = resources(cubin, tmp_path)
        assert stack == 0, (name, macros)
        assert shared_bytes + static - (1024 if card.capability >= 90 else 0) <= card.shared_bytes, (name, macros)


def resources(cubin: bytes, folder: Path) -> tuple[int, int]:
    """Bytes of a thread's stack (spilled registers included) and of static shared memory, read by Triton's cuobjdump."""
    backend = pytest.importorskip("triton.backends.nvidia")
    (folder / "kernel.cubin").write_bytes(cubin)
    command = [Path(backend.__file__).parent / "bin" / "cuobjdump", "--dump-resource-usage", folder / "kernel.cubin"]
    used = re.search(r"STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", subprocess.run(command, capture_output=True, text=True).stdout)
    assert used
    return int(used[1]) + int(used[3]), int(used[2])


@pytest.mark.parametrize("places", [1, 6, 132, 264])
def test_every_unit_of_work_has_one_worker(places: int) -> None:
    """The arithmetic of work.cuh, for tiles that are few, many, and just as many as there are places."""
    for row_blocks, output_blocks, inputs in itertools.product((1, 2, 9), (1, 5, 66, 132, 140), (128, 640, 5120)):
        share, chunks = tile_forms.share(row_blocks, output_blocks, inputs, places), inputs // 128
        shared = row_blocks * output_blocks - share.waves * share.workers
        assert 0 <= shared < 2 * share.workers and share.workers <= places
        begins = [shared * chunks * worker // share.workers for worker in range(share.workers + 1)]
        assert begins[0] == 0 and begins[-1] == shared * chunks
        if shared:
            assert all(begin < end for begin, end in itertools.pairwise(begins))
            owners = [((unit + 1) * share.workers - 1) // (shared * chunks) for unit in range(shared * chunks)]
            assert all(begins[owner] <= unit < begins[owner + 1] for unit, owner in enumerate(owners))


@needs_nvrtc
def test_a_mistake_is_reported_with_its_line() -> None:
    with pytest.raises(nvrtc.CompileError, match=r"kernel.cu\(2\).*undefined"):
        nvrtc.compiled("// one line\nint x = undefined;", {}, "sm_86")


@needs_nvrtc
def test_what_was_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = nvrtc.compiled(cuda.source("sum_parts"), FORMATS["bf16 g128"], "sm_86")
    (kept,) = tmp_path.rglob("*.bin")
    kept.write_bytes(b"kept")
    assert nvrtc.compiled(cuda.source("sum_parts"), FORMATS["bf16 g128"], "sm_86") == b"kept" != first
    assert nvrtc.compiled(cuda.source("sum_parts"), FORMATS["fp16 8 bits"], "sm_86") != b"kept"


@pytest.mark.parametrize("case", [case for case in cases.CASES if case.tiled], ids=lambda case: case.name)
def test_tiling_is_reversible(case: cases.Case) -> None:
    given = cases.weight(case, torch.Generator().manual_seed(0))
    changed = [None if tensor is None else tensor.clone() for tensor in given]
    tile_(*changed)
    assert not torch.equal(changed[0], given[0])
    tile_(*changed, undo=True)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(changed, given, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [case for case in cases.CASES if case.tiled], ids=lambda case: case.name)
def test_cases_on_a_gpu(case: cases.Case, dtype: torch.dtype, poisoned: None) -> None:  # noqa: F811
    given = cases.inputs(case, dtype)
    expected = cases.run(reference, widened(given) | {"scale": given["scale"]})
    agree(cases.run(KERNELS["low_bit_linear"], moved(given, "cuda")), expected, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["ampere_rows", "through_workspace"])
@pytest.mark.parametrize("case", [case for case in PLAIN if case.tiled and case.rows > 8], ids=lambda case: case.name)
def test_ways_of_other_cards_on_a_gpu(case: cases.Case, way: str, poisoned: None) -> None:  # noqa: F811
    """Each way for many rows, whichever this card prefers; they write into memory that they are given."""
    given = cases.inputs(case, torch.bfloat16) | {"gated": False}
    (expected,) = cases.run(reference, widened(given) | {"scale": given["scale"]})
    x, packed, scale, zero = (moved(given, "cuda")[name] for name in ("x", "packed", "scale", "zero"))
    y = x.new_empty(case.rows, case.outputs)
    getattr(cuda, way)(x, packed, scale, zero, y)
    agree((y,), (expected,), x.dtype)


LARGE: list[tuple[Any, ...]] = [  # outputs, inputs, group, zeros, type of x, of the scales
    (272, 640, 128, False, torch.float16, torch.float16), (400, 1024, 64, True, torch.float16, torch.bfloat16),
    (5120, 6144, 128, False, torch.bfloat16, torch.bfloat16), (400, 512, 0, False, torch.float16, torch.float16),
    (2048, 5120, 32, True, torch.bfloat16, torch.bfloat16), (272, 512, 512, False, torch.bfloat16, torch.float16),
    (64, 10_240, 128, False, torch.bfloat16, torch.bfloat16),
]


def product_on_gpu(shape: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    """x, a tiled weight with its scales and zeros, and their product in float32."""
    outputs, inputs, group, zeros, dtype, scale_dtype = shape
    case = cases.Case("", rows, outputs, inputs, group, zeros, True, scale=scale_dtype)
    packed, scale, zero = (None if t is None else t.cuda() for t in cases.weight(case, torch.Generator().manual_seed(rows)))
    x = torch.randn(rows, inputs, dtype=dtype, generator=torch.Generator().manual_seed(rows)).cuda()
    expected = x.float() @ reference.dequantized(packed, scale, zero, dtype=torch.float32).T
    tile_(packed, scale, zero)
    return x, packed, scale, zero, expected


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 16, 17, 33, 65, 129, 300, 1100])
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_every_number_of_rows_on_a_gpu(shape: tuple[Any, ...], rows: int, poisoned: None) -> None:  # noqa: F811
    x, packed, scale, zero, expected = product_on_gpu(shape, rows)
    agree((low_bit_linear(x, packed, scale, zero, tiled=True),), (expected,), x.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [9, 17, 33, 65, 300])
@pytest.mark.parametrize("shape", [*LARGE, (34_816, 512, 128, False, torch.bfloat16, torch.bfloat16)], ids=str)
def test_kernel_without_wgmma_on_a_gpu(shape: tuple[Any, ...], rows: int) -> None:
    """On any card: right, and the same bits in a graph, in which sums pass from block to block."""
    x, packed, scale, zero, expected = product_on_gpu(shape, rows)
    made = [torch.full_like(expected, float("nan"), dtype=x.dtype) for _ in range(8)]
    for card in (CARDS[0], cuda.card(x.device)):
        form = tile_forms.ampere_rows_form(rows, cuda.formats_of(x, packed, scale, zero), card)
        cuda.ampere_rows(x, packed, scale, zero, made[0], form)
        agree((made[0],), (expected,), x.dtype)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for y in made[1:]:
                cuda.ampere_rows(x, packed, scale, zero, y, form)
        graph.replay()
        assert all(torch.equal(y, made[0]) for y in made[1:])
        for y in made:
            y.fill_(float("nan"))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [32, 48, 64, 96, 128, 256, 600])
def test_shared_tiles_have_the_same_bits_every_time_on_a_gpu(rows: int) -> None:
    """Alone, one after the other, and in a graph that is replayed: sums pass from block to block."""
    case = cases.Case("", rows, 2560, 2048, 128, tiled=True)
    packed, scale, _ = (None if t is None else t.cuda() for t in cases.weight(case, torch.Generator().manual_seed(rows)))
    x = torch.randn(rows, 2048, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(rows)).cuda()
    first = low_bit_linear(x, packed, scale, tiled=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [low_bit_linear(x, packed, scale, tiled=True) for _ in range(20)]
    for _ in range(5):
        for y in made:
            y.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(y, first) for y in made)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [5, 9, 16, 29, 48, 64])
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_products_between_norms_on_a_gpu(shape: tuple[Any, ...], rows: int, poisoned: None) -> None:  # noqa: F811
    """A product begins a norm, and one behind ends it; the same bits in a graph."""
    outputs, inputs, group, zeros, _, scale_dtype = shape
    random = torch.Generator().manual_seed(rows)
    case = cases.Case("", rows, outputs, inputs, group, zeros, True, scale=scale_dtype)
    weight = [None if t is None else t.cuda() for t in cases.weight(case, random)]
    tile_(*weight)
    x, residual = (torch.randn(rows, n, dtype=torch.bfloat16, generator=random).cuda() for n in (inputs, outputs))
    norm = NormWeight(0.3 * torch.randn(outputs, generator=random).cuda(), 1e-6, 1.0)
    pending = PendingNorm(x, torch.rand(rows, inputs // 16, generator=random).cuda() * 32, 1e-6)
    wide = reference.low_bit_linear_norm(x.float(), *weight, residual.float(), norm, tiled=True)
    normed = PendingNorm(x.float(), pending.squares, pending.eps).normed()

    def both() -> tuple[torch.Tensor, ...]:
        begun, total = low_bit_linear_norm(x, *weight, residual, norm, tiled=True)
        return begun.values, begun.squares, total, low_bit_linear(pending, *weight, tiled=True)

    values, squares, total, behind = both()
    agree((total, behind), (wide[1], reference.low_bit_linear(normed, *weight, tiled=True)), x.dtype)
    agree((values, squares.sum(1)), (total.float() * (1 + norm.weight), total.float().square().sum(1)), x.dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [both() for _ in range(4)]
    graph.replay()
    for found in made:
        assert all(torch.equal(a, b) for a, b in zip(found, (values, squares, total, behind), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 9, 32, 61])
@pytest.mark.parametrize("outputs", [32, 96])
def test_products_beside_on_a_gpu(outputs: int, rows: int, poisoned: None) -> None:  # noqa: F811
    """The same bits in a graph: their sums, too, pass from block to block."""
    random = torch.Generator().manual_seed(rows)
    case = cases.Case("", rows, 2048, 5120, 128, tiled=True)
    packed, scale, _ = (None if t is None else t.cuda() for t in cases.weight(case, random))
    narrow = (torch.randn(outputs, 5120, generator=random) * 5120**-0.5).bfloat16().cuda()
    values = torch.randn(rows, 5120, dtype=torch.bfloat16, generator=random).cuda()
    for x in (values, PendingNorm(values, torch.rand(rows, 40, generator=random).cuda() * 256, 1e-6)):
        wide = PendingNorm(values.float(), x.squares, x.eps).normed() if isinstance(x, PendingNorm) else values.float()
        y, other = low_bit_linear_beside(x, packed, scale, None, narrow, tiled=True)
        agree((y, other), (reference.low_bit_linear(wide, packed, scale, tiled=True), wide @ narrow.float().T), values.dtype)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = [low_bit_linear_beside(x, packed, scale, None, narrow, tiled=True) for _ in range(5)]
        graph.replay()
        assert all(torch.equal(a, y) and torch.equal(b, other) for a, b in made)


WIDE: list[tuple[Any, ...]] = [  # whose gates are parts of the product on Hopper
    (34_816, 512, 128, False, torch.bfloat16, torch.bfloat16), (34_848, 256, 32, True, torch.float16, torch.float16),
]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 40, 61, 128])
@pytest.mark.parametrize("shape", [*(shape for shape in LARGE if shape[0] % 16 == 0), *WIDE], ids=str)
def test_gates_on_a_gpu(shape: tuple[Any, ...], rows: int, poisoned: None) -> None:  # noqa: F811
    """One launch keeps float32 between product and gate; two round to x's type there, and each is right on what it is given."""
    outputs, inputs, group, zeros, dtype, scale_dtype = shape
    case = cases.Case("", rows, outputs, inputs, group, zeros, True, True, scale_dtype)
    packed, scale, zero = (None if t is None else t.cuda() for t in cases.weight(case, torch.Generator().manual_seed(rows)))
    x = torch.randn(rows, inputs, dtype=dtype, generator=torch.Generator().manual_seed(rows)).cuda()
    weight = reference.dequantized(packed, scale, zero, dtype=torch.float32)
    tile_(packed, scale, zero)
    found = low_bit_linear(x, packed, scale, zero, tiled=True, gated=True)
    if cuda.gates_within(x, packed, scale):
        scaled_first = rows > cuda.MOST_FEW_ROWS and scale.shape[1] > 1  # by which a weight is rounded to x's type
        expected = x.float() @ (weight.to(dtype).float() if scaled_first else weight).T
    else:
        between = low_bit_linear(x, packed, scale, zero, tiled=True)
        agree((between,), (x.float() @ weight.T,), dtype)
        expected = between.float()
    agree((found,), (silu_mul.reference.silu_mul(expected),), dtype)


@pytest.mark.parametrize("workspace_bytes", [1, 3 * 2 * 256 * 128, 10**9])
def test_pieces_of_the_workspace_make_the_whole(workspace_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reference in the decoding kernel's place: which rows of which tensors each piece takes."""
    case = cases.Case("", 5, 400, 256, 64, zeros=True, tiled=True)

    def decode(grid: tuple[int, int, int], packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor,
               into: torch.Tensor, inputs: int) -> None:
        rows = grid[1] * 16
        into[:rows] = reference.dequantized(packed[:rows], scale[:rows], zero[: rows // 8], tiled=True, dtype=into.dtype)

    monkeypatch.setattr(cuda, "function", lambda *_: decode)
    given = cases.inputs(case, torch.float32)
    y = torch.full((case.rows, case.outputs), float("nan"))
    cuda.through_workspace(given["x"], given["packed"], given["scale"], given["zero"], y, workspace_bytes)
    torch.testing.assert_close(y, reference.low_bit_linear(**given))
