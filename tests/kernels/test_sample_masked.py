"""Draws from logits of which a mask has left few: PyTorch's ways and the kernels give the reference's tokens, all allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.test_sample_against import against, moved, of_few_biases, varied
from tests.kernels.test_sample_triton import on, triton_draw
from torch import Tensor

from headrace.kernels.forbid_tokens import TokenMasks
from headrace.kernels.forbid_tokens import reference as forbidding
from headrace.kernels.sample import SlotState, draws_on_device, reference, sample_by_ways
from headrace.kernels.sample.cases import Case, cases
from headrace.kernels.sample.odds import Against, Odds

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

SHARES = 0.0, 0.03, 0.5
"""Of the vocabulary that a row may draw, beside three tokens that it may."""
CASES = [varied(case) for case in cases() if case.logits.shape[1] in (33, 1025, 5000)]
KERNEL_CASES = [case for case in CASES if case.logits.dtype == torch.float32]


def masked(case: Case) -> tuple[Case, Tensor]:
    """Rows with masks of each kind and without one; and what they may draw [R, V]. min_tokens would leave some nothing."""
    rows, vocab = case.logits.shape
    rng = torch.Generator().manual_seed(vocab)
    allowed = torch.zeros(rows, vocab, dtype=torch.bool)
    for row in range(rows):
        share = 1.0 if row % 4 == 3 else SHARES[row % 4]
        allowed[row] = torch.rand(vocab, generator=rng) < share
        allowed[row, torch.randperm(vocab, generator=rng)[:3]] = True
    state = on(case.state, "cpu")
    state.integers[:, 2] = 0
    logits = case.logits.clone()
    forbidding.forbid_tokens(logits, torch.arange(rows), torch.zeros(rows).long(), masks_of(allowed))
    assert torch.equal(logits, case.logits.masked_fill(~allowed, float("-inf")))
    return replace(case, logits=logits, state=state), allowed


def masks_of(allowed: Tensor) -> TokenMasks:
    """Row r's [R, V] is that of slot r at position 0."""
    rows, vocab = allowed.shape
    bits = torch.zeros(rows, -(-vocab // 32) * 32, dtype=torch.int64)
    bits[:, :vocab] = allowed.long()
    words = (bits.view(rows, -1, 32) << torch.arange(32)).sum(2)
    return TokenMasks(torch.stack([torch.zeros(rows).long(), torch.arange(rows)], 1), words.int())


def checked(case: Case, given: Against | None, allowed: Tensor, found: Tensor) -> None:
    expected = reference.sample(case.logits, case.state, case.slots, case.positions, given)
    assert found.tolist() == expected.tolist()
    assert allowed.gather(1, expected[:, None]).all()


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pytorchs_ways(case: Case, drafted: bool) -> None:
    given, (case, allowed) = against(case) if drafted else None, masked(case)
    found = sample_by_ways(case.logits, case.state, case.slots, case.positions, case.features, given)
    checked(case, given, allowed, found)


def test_drafts_that_are_not_allowed_are_among_them() -> None:
    gone = [
        (~masked(case)[1]).gather(1, against(case).drafts[:, None])[:, 0] & (against(case).places >= 0) for case in CASES
    ]
    assert 20 < int(torch.cat(gone).sum()) < len(torch.cat(gone)) - 20


def _check(case: Case, device: str, *, drafted: bool) -> None:
    given = against(case) if drafted else None
    case, allowed = masked(case)
    assert all(map(draws_on_device, case.features))
    found = triton_draw(
        case.logits.to(device), on(case.state, device), case.slots.to(device), case.positions.to(device),
        against=None if given is None else moved(given, device),
    )
    checked(case, given, allowed, found.cpu())


@pytest.mark.interpreted
@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("case", [c for c in KERNEL_CASES if c.logits.shape[1] < 5000], ids=lambda case: case.name)
def test_interpreted(case: Case, drafted: bool) -> None:
    _check(of_few_biases(case, 12), "cpu", drafted=drafted)


@pytest.mark.gpu
@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("case", KERNEL_CASES, ids=lambda case: case.name)
def test_on_a_gpu(case: Case, drafted: bool) -> None:
    _check(case, "cuda", drafted=drafted)


def _check_nothing_left(device: str) -> None:
    """Two tokens are allowed, whose chances q says too large, as if rounding did: nothing is left of p for a draft that is
    rejected, as every fifth is, and what is drawn is allowed.
    """
    vocab, state = 2100, SlotState.allocate(1, 2100, torch.device("cpu"))
    state.numbers[0, :2] = 1.0
    logits = torch.full((1, vocab), float("-inf"))
    logits[0, [7, 2050]] = torch.tensor([0.0, 0.5])
    odds = Odds.allocate(1, 1, torch.device("cpu"))
    odds.ids[0, 0, :2], odds.counts[0, 0] = torch.tensor([7, 2050], dtype=torch.int32), 2
    odds.chances[0, 0, :2] = torch.tensor([0.0, 0.5]).softmax(0) * 1.25
    slots, drafts, places = torch.zeros(1).long(), torch.tensor([2050]), torch.zeros(1).long()
    given, on_device = Against(odds, drafts, places), on(state, device)
    for position in range(12):
        where = torch.tensor([position])
        found = triton_draw(
            logits.to(device), on_device, slots.to(device), where.to(device), against=moved(given, device)
        )
        assert found.tolist() == reference.sample(logits, state, slots, where, given).tolist() == [2050]


@pytest.mark.interpreted
def test_interpreted_where_nothing_is_left_of_what_is_allowed() -> None:
    _check_nothing_left("cpu")


@pytest.mark.gpu
def test_a_gpu_where_nothing_is_left_of_what_is_allowed() -> None:
    _check_nothing_left("cuda")
