"""The CUDA kernels over 8-bit codes: every form compiles for its cards, and on a GPU they agree with the reference."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.low_bit_linear.test_cuda import CARDS, LARGE, SHAPES, needs_nvrtc, resources
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401
from tests.support.triton_kernels import moved, widened

from headrace.kernels import nvrtc
from headrace.kernels.card import Card, card
from headrace.kernels.cuda_function import architecture
from headrace.kernels.eight_bit_linear import cases, cuda, eight_bit_linear, forms, reference
from headrace.kernels.low_bit_linear import cases as low_bit
from headrace.kernels.low_bit_linear.layout import tile_
from headrace.kernels.quantise_rows import cases as quantise_cases
from headrace.kernels.quantise_rows import cuda as quantise
from headrace.kernels.quantise_rows import quantise_rows
from headrace.kernels.quantise_rows import reference as quantise_reference
from headrace.kernels.quantise_rows.layout import INPUTS, ROWS, padded, tile_rows

CODES = (torch.int8, torch.float8_e4m3fn)
FORMATS = {
    "bf16 g128": {"BF16": 1, "SCALE_BF16": 1, "BITS": 4, "GROUP": 128, "ZEROS": 0},
    "fp16 g32 zeros": {"BF16": 0, "SCALE_BF16": 0, "BITS": 4, "GROUP": 32, "ZEROS": 1},
    "bf16 g64 fp16 scales": {"BF16": 1, "SCALE_BF16": 0, "BITS": 4, "GROUP": 64, "ZEROS": 0},
    "bf16 8 bits": {"BF16": 1, "SCALE_BF16": 1, "BITS": 8, "GROUP": 0, "ZEROS": 0},
    "bf16 a row": {"BF16": 1, "SCALE_BF16": 1, "BITS": 4, "GROUP": 0, "ZEROS": 0},
}
Build = tuple[str, str, tuple[tuple[str, int], ...], int]  # kernel, source, macros, dynamic shared bytes


def builds(card: Card, formats: Mapping[str, int]) -> Iterator[Build]:
    """Every kernel that the shapes lead to on this card."""
    def build(name: str, text: str, shared_bytes: int, macros: Mapping[str, int]) -> Build:
        return name, text, tuple((formats | macros).items()), shared_bytes

    for outputs, inputs in SHAPES:
        for rows in (1, 2, 4, 8):
            few, x_rows = forms.few_rows_form(rows, outputs, formats, card), forms.x_rows_of(rows)
            yield build("few_rows", cuda.source("few_rows"), few.shared_bytes(formats, x_rows), cuda.few_macros(few, x_rows))
        for rows in (9, 17, 64, 2048):
            many = forms.many_rows_form(rows, outputs, inputs, formats, card)
            yield build("many_rows", cuda.source("many_rows"), many.shared_bytes(formats), cuda.many_macros(many))
        for rows in (64, 2048) if card.capability == 90 else ():
            wide = forms.hopper_rows_form(rows, formats, card)
            text = cuda.hopper_source(wide.block_rows, fp8=bool(formats["FP8"]))
            yield build("hopper_rows", text, wide.shared_bytes(formats), cuda.hopper_macros(wide))


def multiplied(card: Card, formats: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """The formats with each type of codes that the card multiplies them by."""
    packed = torch.empty(0, dtype=torch.int32 if formats["BITS"] == 4 else torch.int8)
    for fp8, codes in enumerate(CODES):
        if cuda.multiplies(packed, codes, card.capability):
            yield {**formats, "FP8": fp8}


@needs_nvrtc
@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_every_form_compiles_for_its_card(card: Card, formats: Mapping[str, int], tmp_path: Path) -> None:
    for given in multiplied(card, formats):
        for name, text, macros, shared_bytes in dict.fromkeys(builds(card, given)):
            cubin = nvrtc.compiled(text, dict(macros), architecture(card.capability, wgmma=name == cuda.WITH_WGMMA))
            stack, static = resources(cubin, tmp_path)
            assert stack == 0, (name, macros)
            assert shared_bytes + static - (1024 if card.capability >= 90 else 0) <= card.shared_bytes, (name, macros)


def test_only_fp8_products_leave_cards_out() -> None:
    four, eight = torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int8)
    for packed, codes in ((four, torch.int8), (eight, torch.int8), (four, torch.float8_e4m3fn)):
        found = {card.capability for card in CARDS if cuda.multiplies(packed, codes, card.capability)}
        assert found == ({89, 90, 120} if codes != torch.int8 else {86, 89, 90, 120})


def test_registers_that_copying_warps_give_up_are_those_that_others_take() -> None:
    """More would never come, and the kernel would wait for ever."""
    text = cuda.source("hopper_rows")
    given, taken = (int(re.findall(rf"setmaxnreg.{way}.sync.aligned.u32 (\d+)", text)[0]) for way in ("dec", "inc"))
    threads = forms.HopperRows(128, 1, 1).threads
    at_start = 65_536 // threads // 8 * 8  # registers of a thread, in eights, of a block that has a processor to itself
    assert 128 * given + (threads - 128) * taken <= threads * at_start


@needs_nvrtc
@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_quantising_compiles_for_every_card(card: Card, codes: torch.dtype, tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for inputs in (16, 5120, 17_408, 36_864):
            for form, gated in itertools.product(({}, {"tiled": True}, {"halves": True}), (False, True)):
                macros = quantise.macros_of(dtype, codes, inputs, gated=gated, **form)
                held = macros["THREADS"] * macros["PIECES"] * quantise.PIECE
                assert macros["THREADS"] <= quantise.MOST_THREADS and held >= inputs
                stack, _ = resources(nvrtc.compiled(quantise.source(), macros, f"sm_{card.capability}"), tmp_path)
                assert stack == 0, macros


def test_where_tiled_codes_lie() -> None:
    """The order that the kernels' addresses assume, written down once more number by number."""
    rows, inputs = 130, 2 * INPUTS
    codes = torch.randint(-128, 128, (rows, inputs), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    tiled = tile_rows(codes)
    assert tiled.shape == (padded(rows), inputs)
    flat = tiled.view(torch.int8).flatten().tolist()
    for r in (0, 1, 63, 64, 129):
        for i in range(inputs):
            block = (r // ROWS * 2 + i // INPUTS) * ROWS + r % ROWS
            place = (i % INPUTS // 16 ^ r % 8) * 16 + i % 8 // 2 * 4 + i % 2 * 2 + i % 16 // 8
            assert flat[block * INPUTS + place] == codes[r, i], (r, i)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", quantise_cases.CASES, ids=lambda case: case.name)
def test_quantised_on_a_gpu(case: quantise_cases.Case, dtype: torch.dtype, poisoned: None) -> None:  # noqa: F811
    """The reference's bits."""
    given = quantise_cases.inputs(case, dtype)
    given["x"] = given["x"].repeat(1, 2)
    assert quantise.suits(given["x"].cuda())
    codes, scale = quantise_rows(given["x"].cuda(), given["codes"])
    expected, expected_scale = quantise_reference.quantise_rows(given["x"], given["codes"])
    assert torch.equal(scale.cpu(), expected_scale)
    assert torch.equal(codes.cpu().view(torch.uint8), expected.view(torch.uint8))
    numbers, numbers_scale = quantise.quantise_rows(given["x"].cuda(), given["codes"], halves=True)
    assert torch.equal(256 * numbers.cpu().float(), expected.float()) and torch.equal(numbers_scale.cpu(), 256 * expected_scale)


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [128, 5120, 17_408, 36_864])
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_tiled_on_a_gpu(codes: torch.dtype, inputs: int, poisoned: None) -> None:  # noqa: F811
    x = torch.randn(70, inputs + 8, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(inputs))[:, :inputs]
    expected, expected_scale = quantise_reference.quantise_rows(x, codes)
    tiled, scale = quantise.quantise_rows(x.cuda()[:, :inputs], codes, tiled=True)
    assert torch.equal(scale[:70].cpu(), expected_scale)
    written = tile_rows(torch.ones(70, inputs, dtype=torch.int8)).bool()
    assert torch.equal(tiled.cpu()[written], tile_rows(expected)[written])


@pytest.mark.parametrize(
    ("outputs", "fp8", "int8"),
    [
        (34_816, (17, 32, 33, 64), (33, 64)), (16_384, (17, 32, 33, 64), (33, 64)),
        (5120, (17, 32, 33, 64, 128, 256, 512), (33, 64, 128, 256, 512)),
    ],
)
def test_hoppers_16_bit_kernel_is_taken_where_it_was_faster(
    outputs: int, fp8: tuple[int, ...], int8: tuple[int, ...]
) -> None:
    """On an H200, see docs/decisions/0014-eight-bit-activations.md; on other cards never."""
    rows = (1, 8, 16, 17, 32, 33, 64, 128, 256, 512, 1024, 2048, 8192)
    for found, is_fp8 in ((fp8, True), (int8, False)):
        taken = [n for n in rows if forms.faster_in_sixteen_bits(n, outputs, Card(90, 132, 227 * 1024), fp8=is_fp8)]
        assert taken == list(found)
        assert not any(forms.faster_in_sixteen_bits(n, outputs, Card(120, 170, 99 * 1024), fp8=is_fp8) for n in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("codes", CODES, ids=str)
def test_a_row_with_a_nan_on_a_gpu(codes: torch.dtype) -> None:
    x = torch.randn(3, 256, dtype=torch.bfloat16, device="cuda")
    x[1, 7] = float("nan")
    assert quantise_rows(x, codes)[1].isnan().tolist() == [False, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [case for case in cases.CASES if case.weight.tiled], ids=lambda case: case.name)
def test_cases_on_a_gpu(case: cases.Case, dtype: torch.dtype, poisoned: None) -> None:  # noqa: F811
    given = cases.inputs(case, dtype)
    expected = reference.eight_bit_linear(**widened(cases.without_gate(given)) | {"scale": given["scale"]})
    agree((eight_bit_linear(**moved(given, "cuda")),), (expected,), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("codes", CODES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 17, 33, 64, 65, 300, 1100])
@pytest.mark.parametrize("shape", LARGE[2:5], ids=str)
def test_every_number_of_rows_on_a_gpu(
    shape: tuple[Any, ...], rows: int, codes: torch.dtype, poisoned: None  # noqa: F811
) -> None:
    outputs, inputs, group, zeros, dtype, scale_dtype = shape
    case = low_bit.Case("", rows, outputs, inputs, group, zeros, True, scale=scale_dtype)
    packed, scale, zero = (None if t is None else t.cuda() for t in low_bit.weight(case, torch.Generator().manual_seed(rows)))
    x = torch.randn(rows, inputs, dtype=dtype, generator=torch.Generator().manual_seed(rows)).cuda()
    expected = reference.eight_bit_linear(x.float(), packed, scale, zero, codes=codes)
    tile_(packed, scale, zero)
    found = [cuda.in_sixteen_bits(x, packed, scale, zero, codes)]
    if cuda.multiplies(packed, codes, card(x.device).capability):
        found.append(cuda.on_codes(x, packed, scale, zero, codes))
    for one in found:
        agree((one,), (expected,), dtype)
    public = eight_bit_linear(x, packed, scale, zero, codes=codes, tiled=True)
    assert any(torch.equal(public, one) for one in found)
