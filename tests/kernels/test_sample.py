"""Every way of drawing gives the reference's tokens, alone and in company, and leaves its inputs alone."""

from dataclasses import replace

import pytest
import torch

from headrace.kernels.sample import reference, sample
from headrace.kernels.sample.cases import Case, cases
from headrace.kernels.sample.slots import Features, SlotState

CASES = list(cases())
ALL_CASES = pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])


def _drawn(case: Case, rows: list[int]) -> torch.Tensor:
    features = [case.features[row] for row in rows]
    return sample(case.logits[rows], case.state, case.slots[rows], case.positions[rows], features)


@ALL_CASES
def test_draws_what_the_reference_draws(case: Case) -> None:
    logits = case.logits.clone()
    expected = reference.sample(logits, case.state, case.slots, case.positions)
    assert sample(logits, case.state, case.slots, case.positions, case.features).tolist() == expected.tolist()
    assert torch.equal(logits, case.logits)


@ALL_CASES
def test_a_row_does_not_depend_on_its_company(case: Case) -> None:
    rows = list(range(len(case.slots)))
    whole = _drawn(case, rows).tolist()
    assert [int(_drawn(case, [row])) for row in rows] == whole
    assert _drawn(case, rows[::-1]).tolist() == whole[::-1]
    assert _drawn(case, rows[3:9]).tolist() == whole[3:9]


def test_the_cases_reach_every_way_of_drawing() -> None:
    features = [f for case in CASES for f in case.features]
    sampled = [f for f in features if not f.greedy]
    assert any(f.greedy and not f.adjusts for f in features)
    assert any(f.top_k and f.nucleus for f in sampled)
    assert any(f.nucleus and not f.top_k for f in sampled)
    assert any(not f.nucleus and not f.top_k for f in sampled)
    assert any(f.held_open for f in features)


def test_plain_greedy_takes_the_first_of_equal_logits() -> None:
    case = CASES[-1]
    logits = torch.zeros(3, 300)
    logits[0, [7, 9, 250]] = 2.0
    logits[1, 299] = 1.0
    assert sample(logits, case.state, case.slots[:3], case.positions[:3], [Features()] * 3).tolist() == [7, 299, 0]


def test_a_fresh_slot_is_greedy_and_changes_no_logit() -> None:
    """What padding rows of a captured step draw from."""
    state = SlotState.allocate(2, 40, torch.device("cpu"))
    logits = torch.randn(40)
    assert torch.equal(reference.adjusted(logits, state, 1), logits)
    marked = replace(state, marks=state.marks + 7)
    assert torch.equal(reference.adjusted(logits, marked, 1), logits)
    assert reference.sample(logits[None], marked, torch.tensor([1]), torch.tensor([5])).tolist() == [int(logits.argmax())]


def test_a_nucleus_wider_than_the_head_is_found() -> None:
    """Rows whose first 1,024 tokens reach top_p and rows whose do not, in one batch."""
    case = CASES[-1]
    logits = torch.cat([torch.randn(3, 5000) * 0.1, torch.randn(3, 5000) * 8])
    state, slots = case.state, case.slots[:6]
    state.numbers[slots] = torch.tensor([1.0, 0.97, 0, 0, 0, 1], dtype=torch.float64)
    state.integers[slots, 1] = 0
    seen = set()
    for position in range(30):
        positions = torch.full((6,), position)
        drawn = sample(logits, state, slots, positions, [Features(greedy=False, nucleus=True)] * 6)
        assert drawn.tolist() == reference.sample(logits, _without_adjustments(state), slots, positions).tolist()
        ranks = (logits > logits.gather(1, drawn[:, None])).sum(-1)
        seen |= {bool(rank > 1024) for rank in ranks[:3].tolist()}
    assert seen == {True, False}


def _without_adjustments(state: SlotState) -> SlotState:
    return replace(
        state,
        integers=state.integers * torch.tensor([1, 1, 0, 0]),
        bias_values=torch.zeros_like(state.bias_values),
        marks=torch.zeros_like(state.marks),
    )


@pytest.mark.gpu
@ALL_CASES
def test_a_gpu_draws_the_same_tokens(case: Case) -> None:
    """Noise is bit-equal but for the last digit of log; the scores of these cases are never that close."""
    state = replace(case.state, **{name: getattr(case.state, name).cuda() for name in case.state.__slots__})
    logits, slots, positions = case.logits.cuda(), case.slots.cuda(), case.positions.cuda()
    sample(logits, state, slots, positions, case.features)  # loads kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = sample(logits, state, slots, positions, case.features)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert drawn.tolist() == reference.sample(case.logits, case.state, case.slots, case.positions).tolist()
