"""Rows of captured steps, of which the host knows bounds alone: their tables, and the operations on them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401
from torch import Tensor

from headrace.kernels.bounded_rows import BoundedRows
from headrace.kernels.gated_delta_mix import MixWeights
from headrace.kernels.gated_delta_mix import reference as mix_reference
from headrace.kernels.paged_attention import reference as attention_reference
from headrace.kernels.rows import PackedRows

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Bounds:
    """singles: rows of one token, of at most `most_singles`; longer: of any number, none too, of at most `most_longer`."""

    singles: int
    longer: tuple[int, ...]
    most_singles: int
    most_longer: int

    @property
    def counts(self) -> list[int]:
        idle = [0] * (self.most_singles - self.singles)
        return [1] * self.singles + idle + [*self.longer] + [0] * (self.most_longer - len(self.longer))

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    def offsets(self, device: torch.device) -> Tensor:
        return torch.tensor([0, *accumulate(self.counts)], dtype=torch.int32, device=device)

    def rows(self, device: torch.device) -> BoundedRows:
        return BoundedRows(self.offsets(device), self.most_longer, self.tokens)

    @property
    def real(self) -> list[int]:
        """Indices of rows that have tokens."""
        return [row for row, count in enumerate(self.counts) if count]


LONGER = st.lists(st.integers(0, 40), max_size=4).map(tuple)
BOUNDS = st.builds(
    lambda singles, longer, idle, spare: Bounds(singles, longer, singles + idle, len(longer) + spare),
    st.integers(0, 5), LONGER, st.integers(1, 3), st.integers(1, 2),
)


@settings(max_examples=200, deadline=None)
@given(BOUNDS, st.integers(1, 9))
def test_tables_are_those_of_known_rows_and_spare_entries(bounds: Bounds, size: int) -> None:
    table = bounds.rows(CPU).pieces(size, 2)
    assert table is not None and table.rows.dtype == table.pieces.dtype == torch.int32
    starts, first = [0, *accumulate(bounds.counts)], bounds.most_singles
    expected = []
    for row, (start, tokens) in enumerate(zip(starts[first:-1], bounds.counts[first:], strict=True), first):
        assert table.rows[row - first].tolist() == [row, start, tokens, len(expected)]
        expected += [[row, start, tokens, before] for before in range(0, tokens, size)]
    assert table.pieces[: len(expected)].tolist() == expected
    assert all(tokens == 0 < before for _, _, tokens, before in table.pieces[len(expected) :].tolist())
    assert (table.pieces[:, 0] < len(bounds.counts)).all()


@given(BOUNDS)
def test_singles_have_a_place_or_none(bounds: Bounds) -> None:
    singles = bounds.rows(CPU).singles
    assert singles is not None and isinstance(singles.rows, Tensor) and isinstance(singles.at, Tensor)
    assert singles.rows.tolist() == list(range(bounds.most_singles))
    assert singles.at.tolist() == [*range(bounds.singles), *(-1,) * (bounds.most_singles - bounds.singles)]


def test_rows_of_equal_length_are_not_known() -> None:
    with pytest.raises(NotImplementedError):
        _ = Bounds(1, (3,), 2, 2).rows(CPU).groups


MIXES = (Bounds(3, (70, 2, 1), 5, 4), Bounds(0, (17,), 2, 2), Bounds(2, (), 2, 1), Bounds(1, (64, 129, 5), 4, 4))


def mix_on(device: torch.device, way: Any, bounds: Bounds, dtype: torch.dtype, state: torch.dtype, dim: int) -> None:
    """gated_delta_mix over bounded rows is the reference over those that have tokens; the others' slots stay."""
    torch.manual_seed(bounds.tokens)
    key_heads, heads, taps, slots = 1, 3, 4, len(bounds.counts) + 2
    channels = (2 * key_heads + heads) * dim
    weights = MixWeights(
        (0.5 * torch.randn(taps, channels)).to(dtype).T, 0.5 * torch.randn(heads), torch.randn(heads) - 2,
        1 + 0.3 * torch.randn(dim), 1e-6,
    )
    qkvz = torch.cat([torch.randn(bounds.tokens, channels), 1 + 0.3 * torch.randn(bounds.tokens, heads * dim)], 1).to(dtype)
    ab, tails = torch.randn(bounds.tokens, 2 * heads).to(dtype), torch.randn(slots, taps - 1, channels).to(dtype)
    states, where = (0.2 * torch.randn(slots, heads, dim, dim)).to(state), torch.randperm(slots)
    row_slots = torch.tensor([int(where[row]) if count else int(where[-1]) for row, count in enumerate(bounds.counts)])
    wide_tails, wide_states = tails.float().clone(), states.float().clone()  # which move on
    wide = MixWeights(weights.conv.float(), weights.a_log, weights.dt_bias, weights.norm, weights.eps)
    expected = mix_reference.gated_delta_mix(
        qkvz.float(), ab.float(), wide, wide_tails, wide_states, row_slots[bounds.real],
        PackedRows([bounds.counts[row] for row in bounds.real], CPU),
    )
    on = MixWeights(
        weights.conv.T.to(device).T, *(x.to(device) for x in (weights.a_log, weights.dt_bias, weights.norm)), weights.eps
    )
    tails, states = tails.to(device), states.to(device)
    out = way(qkvz.to(device), ab.to(device), on, tails, states, row_slots.to(device), bounds.rows(device))
    agree((out, tails, states), (expected, wide_tails, wide_states), dtype)


def attention_on(device: torch.device, way: Any, bounds: Bounds, dtype: torch.dtype, dim: int, window: int | None) -> None:
    torch.manual_seed(bounds.tokens)
    heads, kv_heads, page_tokens, width = 6, 1, 16, 20
    lengths = [count + 37 * row % (16 * width - count) if count else 0 for row, count in enumerate(bounds.counts)]
    table = torch.randperm(len(lengths) * width).view(-1, width)
    keys, values = torch.randn(2, len(lengths) * width, page_tokens, kv_heads, dim).to(dtype)
    q = torch.randn(bounds.tokens, heads, dim).to(dtype)
    real = bounds.real
    known = attention_reference.plan_rows(
        table[real], torch.tensor(lengths, dtype=torch.int32)[real],
        torch.tensor([0, *accumulate(bounds.counts[row] for row in real)], dtype=torch.int32),
        [bounds.counts[row] for row in real], page_tokens, window,
    )
    expected = attention_reference.paged_attention(q.float(), keys.float(), values.float(), known, dim**-0.5)
    ends, bound = torch.tensor(lengths, dtype=torch.int32, device=device), max(bounds.tokens, 2)
    counts = (1,) * bounds.most_singles + (bound,) * bounds.most_longer
    rows = attention_reference.plan_rows(
        table.to(device), ends, bounds.offsets(device), counts, page_tokens, window, longer=bounds.most_longer
    )
    agree((way(q.to(device), keys.to(device), values.to(device), rows, dim**-0.5),), (expected,), dtype)


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("bounds", MIXES[:3], ids=str)
def test_interpreted_gated_delta(bounds: Bounds, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    from headrace.kernels.gated_delta_mix import triton

    mix_on(CPU, triton.gated_delta_mix, bounds, dtype, torch.float32, 16)


@pytest.mark.interpreted
@pytest.mark.parametrize("window", [None, 45])
@pytest.mark.parametrize("bounds", MIXES[:3], ids=str)
def test_interpreted_attention(bounds: Bounds, window: int | None) -> None:
    pytest.importorskip("triton")
    from headrace.kernels.paged_attention import triton

    attention_on(CPU, triton.paged_attention, bounds, torch.float16, 16, window)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "state", "dim"), [
    (torch.bfloat16, torch.float16, 128), (torch.float16, torch.float32, 128), (torch.bfloat16, torch.float16, 64),
    (torch.float32, torch.float32, 32),
], ids=str)
@pytest.mark.parametrize("bounds", MIXES, ids=str)
def test_gated_delta_on_a_gpu(bounds: Bounds, dtype: torch.dtype, state: torch.dtype, dim: int, poisoned: None) -> None:  # noqa: F811
    from headrace.kernels.gated_delta_mix import gated_delta_mix

    mix_on(torch.device("cuda"), gated_delta_mix, bounds, dtype, state, dim)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 45])
@pytest.mark.parametrize(("dtype", "dim"), [(torch.bfloat16, 256), (torch.float16, 128), (torch.bfloat16, 64)], ids=str)
@pytest.mark.parametrize("bounds", MIXES, ids=str)
def test_attention_on_a_gpu(bounds: Bounds, dtype: torch.dtype, dim: int, window: int | None, poisoned: None) -> None:  # noqa: F811
    from headrace.kernels.paged_attention import paged_attention

    attention_on(torch.device("cuda"), paged_attention, bounds, dtype, dim, window)
