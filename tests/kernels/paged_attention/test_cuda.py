"""The CUDA kernels: every form compiles for every card within its means; on a GPU they agree with the reference, always alike.

The shared cases run on them too, where they suit (tests/kernels/test_gpu.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.kernels.low_bit_linear.test_cuda import CARDS, needs_nvrtc, resources
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401
from tests.support.triton_kernels import moved, widened

from headrace.kernels import nvrtc
from headrace.kernels.card import Card
from headrace.kernels.cuda_function import architecture
from headrace.kernels.paged_attention import cases, cuda, forms, paged_attention, reference
from headrace.kernels.paged_attention.forms import Vectors

SHAPES = ((4, 6, 256, 16), (8, 4, 128, 32), (3, 1, 128, 16))  # key heads, query heads of each, their size, tokens of a page
POOLS = tuple(cuda.KINDS)
BUILT = (*((SHAPES[0], torch.bfloat16, pool) for pool in POOLS), (SHAPES[0], torch.float16, torch.float16),
         (SHAPES[1], torch.bfloat16, torch.bfloat16), (SHAPES[1], torch.float16, torch.int8))
Build = tuple[str, str, tuple[tuple[str, int], ...], int]  # kernel, text, macros, dynamic shared bytes


def builds(card: Card, shape: tuple[int, ...], queries: torch.dtype, pool: torch.dtype) -> Iterator[Build]:
    """Every kernel that rows of this kind lead to on this card."""
    kv, group, dim, page_tokens = shape
    vectors, macros = Vectors(dim, pool.itemsize), cuda.shape_macros(queries, pool, dim, kv, group, page_tokens)

    def build(name: str, more: dict[str, int], shared_bytes: int, text: str = "") -> Build:
        return name, text, tuple((macros | more).items()), shared_bytes

    yield build("add_items", {}, 0)
    for rows in (1, 64):
        few = forms.few_queries_form(rows * kv, vectors, card)
        yield build("few_queries", cuda.few_macros(few), few.shared_bytes(vectors))
    on_hopper = [forms.hopper_chunk_form(vectors)] if card.capability == 90 else []
    for tokens in (2, 4, 8, 32):
        form = forms.items_form(tokens * group, vectors, card)
        if isinstance(form, forms.HopperQueries):
            on_hopper.append(form)
        elif isinstance(form, forms.PackedQueries):
            yield build("packed_queries", cuda.packed_macros(form), form.shared_bytes(vectors))
        else:
            yield build("many_queries", cuda.many_macros(form), form.shared_bytes(vectors))
    for wide in on_hopper:
        text = cuda.hopper_text(wide, vectors, pool)
        yield build("hopper_queries", cuda.hopper_macros(wide, vectors), wide.shared_bytes(vectors), text)


@needs_nvrtc
@pytest.mark.parametrize(("shape", "queries", "pool"), BUILT, ids=str)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_every_form_compiles_for_its_card(
    card: Card, shape: tuple[int, ...], queries: torch.dtype, pool: torch.dtype, tmp_path: Path
) -> None:
    for name, text, macros, shared_bytes in dict.fromkeys(builds(card, shape, queries, pool)):
        target = architecture(card.capability, wgmma=name == cuda.WITH_WGMMA)
        cubin = nvrtc.compiled(cuda.source(name, text), dict(macros), target)
        stack, static = resources(cubin, tmp_path)
        assert stack == 0, (name, macros)
        assert shared_bytes + static - (forms.SYSTEM_BYTES if card.capability >= 90 else 0) <= card.shared_bytes, (name, macros)


def rows_of(tokens: int) -> tuple[tuple[int, int], ...]:
    """One long row, of several items on any card, beside short ones."""
    return ((tokens, 4000), (1, 70), (min(tokens, 5), 517), (tokens, tokens))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 8, 32, 300])
@pytest.mark.parametrize("window", [None, 700], ids=lambda window: f"window-{window}")
@pytest.mark.parametrize(("shape", "queries", "pool"), (*BUILT, (SHAPES[2], torch.bfloat16, torch.float8_e4m3fn)), ids=str)
def test_long_rows_on_a_gpu(
    shape: tuple[int, ...], queries: torch.dtype, pool: torch.dtype, window: int | None, tokens: int,
    poisoned: None,  # noqa: F811
) -> None:
    agrees_every_time(shape, queries, pool, window, tokens)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [2, 8, 32])
@pytest.mark.parametrize("window", [None, 700], ids=lambda window: f"window-{window}")
@pytest.mark.parametrize(("shape", "queries", "pool"), BUILT, ids=str)
def test_forms_of_other_cards_on_a_gpu(
    shape: tuple[int, ...], queries: torch.dtype, pool: torch.dtype, window: int | None, tokens: int,
    poisoned: None, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    """On any card, what one without wgmma is given."""
    monkeypatch.setattr("headrace.kernels.paged_attention.triton.card", lambda _: CARDS[0])
    agrees_every_time(shape, queries, pool, window, tokens)


def agrees_every_time(
    shape: tuple[int, ...], queries: torch.dtype, pool: torch.dtype, window: int | None, tokens: int
) -> None:
    kv_heads, group, dim, page_tokens = shape
    eight_bits = pool.itemsize == 1
    case = cases.Case(
        "long", rows_of(tokens), kv_heads * group, kv_heads, page_tokens, window, dim, pool if eight_bits else None, gated=True
    )
    given = cases.inputs(case, queries)
    given |= {} if eight_bits else {name: given[name].to(pool) for name in ("keys", "values")}
    on_gpu = moved(given, "cuda")
    q, keys, values, *scales = (on_gpu.get(name) for name in ("q", "keys", "values", "key_scales", "value_scales"))
    assert cuda.suits((q, keys, values, *scales), on_gpu["gate"], page_tokens)
    found = cases.run(_Public, on_gpu)
    agree(found, cases.run(reference, moved(widened(given), "cuda")), queries)
    for _ in range(3):
        assert torch.equal(cases.run(_Public, on_gpu)[0], found[0])


class _Public:
    """The operation as `cases.run` calls it."""

    plan_rows = staticmethod(reference.plan_rows)
    paged_attention = staticmethod(paged_attention)
