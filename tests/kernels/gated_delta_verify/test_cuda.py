"""The CUDA kernels for heads of 128: they compile for every card within its means, wait, and agree with the definition."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kernels.low_bit_linear.test_cuda import CARDS, needs_nvrtc, resources
from tests.kernels.test_early_start import WRITES, before_wait, parameters_read
from tests.kernels.test_gated_delta_verify import check_bits
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401
from tests.support.sass import loads_before_wait
from tests.support.triton_kernels import moved, widened
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import Card
from headrace.kernels.gated_delta_verify import Ring, cases, cuda, reference
from headrace.kernels.gated_delta_verify.cuda import Form, Layer

Types = tuple[torch.dtype, torch.dtype]  # of activations and of states
TYPES: tuple[Types, ...] = (
    (torch.bfloat16, torch.float16), (torch.bfloat16, torch.float32), (torch.float16, torch.float16),
    (torch.float16, torch.float32),
)
SHAPES = ((16, 48, 4, 7), (16, 32, 4, 15), (2, 2, 2, 3), (4, 16, 1, 7))  # key and value heads, taps, drafts
QWEN = Layer(16, 3, 4, 7, torch.float16)
POINTERS = 18
READ_EARLY = {2, 3, 4, 5}  # conv, a_log, dt_bias, norm
GUESSED_EARLY = {8, 9, 10, 11, 12}  # slots, offsets, certain, pending, parity: looked up again behind the wait

Case = partial(cases.Case, key_dim=128, value_dim=128)
WIDTHS = Case(
    "widths", ((2, 1, 3), (0, 1, 0), (1, 4, 2), (7, 1, 7), (3, 9, 7), (0, 16, 0), (5, 2, 0)), key_heads=2, value_heads=6
)
RUN = (
    (WIDTHS, TYPES[0]), (WIDTHS, TYPES[3]),
    (Case("many-rows", ((3, 1, 7), (7, 1, 7), (0, 1, 7)) * 40, key_heads=2, value_heads=6), TYPES[0]),
    (Case("deep", ((15, 1, 15), (9, 2, 10), (1, 1, 8)), depth=15, key_heads=1, value_heads=2), TYPES[0]),
    (Case("no-taps", ((2, 1, 3), (3, 5, 2)), width=1, key_heads=1, value_heads=1), TYPES[2]),
)


def memory(types: Types, shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Ring]:
    """Tails, states and ring of one slot, that say a layer's shape and types."""
    (dtype, state), (key_heads, heads, width, depth) = types, shape
    channels = (2 * key_heads + heads) * cuda.HEAD_DIM
    ring = Ring(
        torch.empty(1, 2, depth, key_heads, 128).half(), torch.empty(1, 2, depth, heads, 128).half(),
        torch.empty(1, 2, depth, heads), torch.empty(1, 2, depth, channels, dtype=dtype),
    )
    return torch.empty(1, width - 1, channels, dtype=dtype), torch.empty(1, heads, 128, 128, dtype=state), ring


def forms(layer: Layer, card: Card) -> set[Form]:
    return {cuda.form(rows, longest, layer, card) for rows in (1, 2, 4, 8, 16, 32, 64, 256) for longest in (8, 16)}


@needs_nvrtc
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_every_form_compiles_for_its_card(card: Card, types: Types, tmp_path: Path) -> None:
    for shape in SHAPES if types == TYPES[0] else SHAPES[:1]:
        layer = memory(types, shape)
        for form in forms(Layer.of(*layer), card):
            macros = cuda.verify_macros(*layer, form)
            stack, static = resources(code("verify", macros, card.capability), tmp_path)
            assert stack == 0, (shape, form)
            assert macros["SHARED_BYTES"] + static <= card.shared_bytes // form.resident, (shape, form)
        stack, _ = resources(code("fold", cuda.fold_macros(*layer), card.capability), tmp_path)
        assert stack == 0, shape


def code(name: str, macros: dict[str, int], capability: int) -> bytes:
    return nvrtc.compiled(cuda.source(name), macros, f"sm_{capability}")


@needs_nvrtc
@pytest.mark.parametrize("name", ["verify", "fold"])
def test_waits_before_it_touches_what_others_write(name: str, tmp_path: Path) -> None:
    """Nor does the driver's compiler put a load before the wait that PTX has behind it."""
    layer = memory(TYPES[0], SHAPES[0])
    for form in forms(Layer.of(*layer), CARDS[2]) if name == "verify" else (None,):
        macros = cuda.verify_macros(*layer, form) if form else cuda.fold_macros(*layer)
        found = before_wait(nvrtc.compiled(cuda.source(name), macros, "compute_90").decode())
        assert not [instruction for instruction, _ in found if WRITES.match(instruction)]
        assert parameters_read(found) & set(range(POINTERS)) == (READ_EARLY | GUESSED_EARLY if form else set())
        loads = sum(instruction.startswith("ld.global") for instruction, _ in found)
        assert loads_before_wait(code(name, macros, 90), tmp_path) <= loads


def test_heads_are_together_where_many_blocks_come_one_after_the_other_and_fit() -> None:
    small, _, hopper, _ = CARDS
    chosen = [cuda.form(rows, longest, QWEN, card).group for card in (small, hopper) for longest in (8, 16) for rows in (1, 64)]
    assert chosen == [1, 3, 1, 1, 1, 3, 1, 3]


def test_extra_warps_where_a_block_has_a_processor_of_its_own() -> None:
    chosen = [cuda.form(rows, 8, QWEN, CARDS[2]).extra for rows in (1, 2, 3)]
    assert chosen == [cuda.EXTRA, cuda.EXTRA, 0]


def test_memory_on_a_cpu_does_not_suit() -> None:
    assert not cuda.suits(*memory(TYPES[0], SHAPES[0]))


def on_gpu(case: cases.Case, types: Types) -> dict[str, Any]:
    """With the convolution's channels side by side, as in a model."""
    given = cases.inputs(case, types[0])
    given["states"] = given["states"].to(types[1])
    given["conv_weight"] = given["conv_weight"].T.contiguous().T
    return given


def every_form(case: cases.Case, state: torch.dtype) -> set[Form]:
    """What a GPU of compute capability 9.0 takes for the case's rows, few or many of them."""
    longest, heads = max(sure + drafts for _, sure, drafts in case.rows), (case.key_heads, case.value_heads // case.key_heads)
    layer = Layer(*heads, case.width, case.depth, state)
    return {cuda.form(rows, n, layer, CARDS[2]) for rows in (1, 70, 999) for n in (8, 16) if n >= longest}


def operation(form: Form) -> SimpleNamespace:
    return SimpleNamespace(gated_delta_verify=partial(cuda.gated_delta_verify, chosen=form), fold=cuda.fold)


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "types"), RUN, ids=lambda x: x.name if isinstance(x, cases.Case) else str(x))
def test_cases_on_a_gpu(case: cases.Case, types: Types, poisoned: None) -> None:  # noqa: F811
    """Against the definition, in each form; fold gives a step's bits, and what was rejected leaves no trace."""
    given = on_gpu(case, types)
    expected = cases.run(reference, copy.deepcopy(widened(given)))
    for form in every_form(case, types[1]):
        found = cases.run(operation(form), moved(copy.deepcopy(given), "cuda"))
        agree(found, expected, types[0])
        check_bits(operation(form), case, *types, "cuda")


@pytest.mark.gpu
def test_public_function_on_a_gpu() -> None:
    from headrace.kernels import gated_delta_verify as public

    found, direct = (cases.run(op, moved(copy.deepcopy(on_gpu(WIDTHS, TYPES[0])), "cuda")) for op in (public, cuda))
    assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(found, direct, strict=True))
