"""The kernels that draw give the reference's tokens: under Triton's interpreter, and compiled, captured in a CUDA graph."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.kernels.sample import draws_on_device, reference
from headrace.kernels.sample.cases import Case, cases
from headrace.kernels.sample.slots import GENERATED_ONCE, SlotState

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

CASES = [case for case in cases() if case.logits.dtype == torch.float32]
ALL_CASES = pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])


# The interpreter takes a tenth of a second a row, and more where logit_bias has many entries.
SMALL_CASES = pytest.mark.parametrize("case", [c for c in CASES if c.logits.shape[1] in (1, 2, 33, 1025)], ids=lambda c: c.name)


def triton_draw(*args: Any, **kwargs: Any) -> Tensor:
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from headrace.kernels.sample import triton

    return triton.draw(*args, **kwargs)


def covered(case: Case) -> list[int]:
    return [row for row, features in enumerate(case.features) if draws_on_device(features)]


def expected(case: Case, rows: list[int]) -> list[int]:
    found: list[int] = reference.sample(case.logits[rows], case.state, case.slots[rows], case.positions[rows]).tolist()
    return found


def on(state: SlotState, device: str) -> SlotState:
    return replace(state, **{f.name: getattr(state, f.name).to(device, copy=True) for f in fields(state)})


def test_all_rows_of_the_cases_are_drawn_here() -> None:
    rows = [case.features[row] for case in CASES for row in covered(case)]
    assert len(rows) == sum(len(case.features) for case in CASES)
    assert any(f.greedy for f in rows) and any(f.top_k and f.nucleus for f in rows)
    assert any(not f.greedy and not f.top_k and not f.nucleus for f in rows) and any(f.penalised and f.held_open for f in rows)
    assert any(not f.greedy and not f.top_k and f.nucleus for f in rows)


@pytest.mark.interpreted
@SMALL_CASES
def test_interpreted_draws_what_the_reference_draws(case: Case) -> None:
    rows = [row for row in covered(case) if case.features[row].bias_entries < 10][:12]
    found = triton_draw(case.logits[rows], case.state, case.slots[rows], case.positions[rows])
    assert found.tolist() == expected(case, rows)


WHERE = [pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits_of_16_bits_are_drawn_from_as_their_numbers(dtype: torch.dtype, device: str) -> None:
    case = next(c for c in CASES if c.logits.shape[1] == 1025)
    rows = [row for row in covered(case) if case.features[row].bias_entries < 10][:12]
    logits = case.logits[rows].to(dtype).to(device)
    given = on(case.state, device), case.slots[rows].to(device), case.positions[rows].to(device)
    assert triton_draw(logits, *given).tolist() == triton_draw(logits.float(), *given).tolist()


@pytest.mark.interpreted
def test_interpreted_counts_what_it_draws() -> None:
    _check_counting(CASES[4], "cpu")


def _check_counting(case: Case, device: str) -> None:
    rows = covered(case)
    state, slots = on(case.state, device), case.slots[rows].to(device)
    next_tokens = torch.full((len(state.integers),), -1, device=device)
    tokens = triton_draw(case.logits[rows].to(device), state, slots, case.positions[rows].to(device), next_tokens)
    assert tokens.tolist() == expected(case, rows)
    wanted, wanted_next = on(case.state, "cpu"), torch.full((len(state.integers),), -1)
    for row, token in zip(rows, tokens.tolist(), strict=True):
        slot = int(case.slots[row])
        wanted_next[slot] = token
        wanted.integers[slot, 3] += 1
        wanted.marks[slot, token] += GENERATED_ONCE * case.features[row].penalised
    assert torch.equal(next_tokens.cpu(), wanted_next)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(state.tensors(), wanted.tensors(), strict=True))


@pytest.mark.interpreted
@pytest.mark.parametrize("pattern", [(0.0,), (1.0, -0.0, 0.0), (1.0, *[float("-inf")] * 299)], ids=("all", "some", "one"))
def test_interpreted_equal_logits(pattern: tuple[float, ...]) -> None:
    """More equal logits than are kept; zeros of both signs; no token possible but one."""
    _check_equal(torch.tensor([pattern]).repeat(1, 300 // len(pattern)), "cpu")


def _check_equal(logits: Tensor, device: str) -> None:
    state = SlotState.allocate(1, logits.shape[1], torch.device("cpu"))
    slots = torch.zeros(1, dtype=torch.int64)
    for position, (temperature, top_k) in enumerate([(0.0, 0), (1.0, 64), (1.0, 1), (2.0, 50), (1.0, 0)]):
        state.integers[0] = torch.tensor([7, top_k, 0, 0])
        state.numbers[0] = torch.tensor([temperature, 1, 0, 0, 0, 1], dtype=torch.float64)
        given = (logits, state, slots, torch.tensor([position]))
        found = triton_draw(logits.to(device), on(state, device), slots.to(device), given[3].to(device))
        assert found.tolist() == reference.sample(*given).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 65, 248_320], ids=str)
def test_a_gpu_draws_among_equal_logits(count: int) -> None:
    _check_equal(torch.zeros(1, count), "cuda")


@pytest.mark.gpu
@ALL_CASES
def test_a_gpu_counts_what_it_draws(case: Case) -> None:
    _check_counting(case, "cuda")


@pytest.mark.gpu
def test_a_captured_draw_follows_the_slots() -> None:
    """One graph of the whole vocabulary's width, replayed with other logits, slots, positions and parameters."""
    rows, vocab = 16, 248_320
    rng = torch.Generator().manual_seed(5)
    state = on(SlotState.allocate(rows + 1, vocab, torch.device("cpu")), "cuda")
    state.numbers[:] = torch.tensor([1.0, 1, 0, 0, 0, 1], dtype=torch.float64)
    logits = torch.zeros(rows, vocab, device="cuda")
    slots, positions = torch.arange(rows, device="cuda"), torch.zeros(rows, dtype=torch.int64, device="cuda")
    triton_draw(logits, state, slots, positions)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = triton_draw(logits, state, slots, positions)
    for _ in range(4):
        logits.copy_(torch.randn(rows, vocab, generator=rng) * 3)
        slots.copy_(torch.randperm(rows + 1, generator=rng)[:rows])
        positions.copy_(torch.randint(0, 2**20, (rows,), generator=rng))
        for slot in range(rows + 1):
            top_k = (0, 1, 20, 64, 1000)[int(torch.randint(0, 5, (1,), generator=rng))]
            temperature, top_p = (0.0, 1.0, 0.7, 1.5)[slot % 4], (1.0, 0.9, 0.3)[slot % 3] if top_k <= 64 else 1.0
            state.integers[slot] = torch.tensor([slot - 5, top_k, 0, 0])
            state.numbers[slot, :3] = torch.tensor([temperature, top_p, (0.0, 0.01)[slot % 3 == 0]], dtype=torch.float64)
        graph.replay()
        assert drawn.tolist() == reference.sample(logits.cpu(), on(state, "cpu"), slots.cpu(), positions.cpu()).tolist()
