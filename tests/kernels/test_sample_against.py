"""Drafts with odds, and what is drawn against them: PyTorch's ways and the kernels give the reference's tokens."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.kernels.test_sample_triton import on, triton_draw
from torch import Tensor

from headrace.kernels.draw_candidates.reference import draw_candidates
from headrace.kernels.sample import SlotState, draws_on_device, reference, sample_by_ways
from headrace.kernels.sample.cases import Case, cases
from headrace.kernels.sample.odds import ODDS, Against, Odds
from headrace.kernels.sample.ranking import ranked
from headrace.kernels.sample.slots import GENERATED_ONCE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

DRAFTS, PLACE = 3, 1


def varied(case: Case) -> Case:
    """Also with rows that keep all of the vocabulary, and with such as keep the most of it."""
    features, state = list(case.features), on(case.state, "cpu")
    for row, slot in enumerate(case.slots.tolist()):
        if row % 3 == 1 or row % 6 == 2:
            temperature, top_p = ((0.7, 1.5, 3.0)[row // 3 % 3], 1.0) if row % 3 == 1 else (100.0, 0.95)
            state.integers[slot, 1] = 0
            state.numbers[slot, 0], state.numbers[slot, 1] = temperature, top_p
            features[row] = replace(features[row], greedy=False, top_k=0, nucleus=top_p < 1)
    return replace(case, state=state, features=tuple(features))


ALL_CASES = [varied(case) for case in cases()]
CASES = [case for case in ALL_CASES if case.logits.dtype == torch.float32]
SMALL_CASES = [case for case in CASES if case.logits.shape[1] in (2, 33, 1025)]
GPU_CASES = [case for case in CASES if case.logits.shape[1] in (33, 1025, 5000)]  # each width is compiled apart


def of_few_biases(case: Case, most: int) -> Case:
    """Rows of a case, without those whose many biases an interpreter adds one by one."""
    rows = [row for row, features in enumerate(case.features) if features.bias_entries < 10][:most]
    return replace(
        case, logits=case.logits[rows], slots=case.slots[rows], positions=case.positions[rows],
        features=tuple(case.features[row] for row in rows),
    )


def drafter_logits(case: Case) -> Tensor:
    rng = torch.Generator().manual_seed(case.logits.shape[1])
    return case.logits + 3 * torch.randn(case.logits.shape, generator=rng)


def drafted(case: Case) -> tuple[Tensor, Odds]:
    """Every slot but each fifth is free."""
    odds = Odds.allocate(len(case.state.integers), DRAFTS, torch.device("cpu"))
    odds.free.copy_(torch.arange(len(odds.free)) % 5 > 0)
    logits = torch.stack([
        reference.adjusted(x, case.state, slot) for x, slot in zip(drafter_logits(case), case.slots.tolist(), strict=True)
    ])
    values, tokens = ranked(logits, ODDS)
    state = case.state
    return draw_candidates(values, tokens, case.slots, case.positions, state.integers, state.numbers, odds, PLACE), odds


def against(case: Case) -> Against:
    """Every row's draft but each fourth's."""
    drafts, odds = drafted(case)
    return Against(odds, drafts, torch.where(torch.arange(len(drafts)) % 4 > 0, PLACE, -1))


def moved(given: Any, device: str) -> Any:
    """A dataclass of tensors, and of others such, on a device."""
    if isinstance(given, Tensor):
        return given.to(device, copy=True)
    return replace(given, **{f.name: moved(getattr(given, f.name), device) for f in fields(given)})


def kinds(case: Case, given: Against) -> list[str]:
    """What each row is an example of."""
    found = []
    tokens = reference.sample(case.logits, case.state, case.slots, case.positions, given).tolist()
    for row, slot in enumerate(case.slots.tolist()):
        place = int(given.places[row])
        if place < 0 or not given.odds.counts[slot, place]:
            found.append("no draft")
        elif not reference.is_exact(case.logits[row], case.state, slot):
            found.append("too many")
        else:
            limited = case.features[row].top_k > 0 or case.features[row].nucleus
            accepted = tokens[row] == int(given.drafts[row])
            found.append(f"{'few' if limited else 'all'}, {'accepted' if accepted else 'instead'}")
    return found


def test_the_cases_have_rows_of_every_kind() -> None:
    found = [kind for case in CASES for kind in kinds(case, against(case))]
    assert set(found) == {"no draft", "too many", "few, accepted", "few, instead", "all, accepted", "all, instead"}
    assert min(map(found.count, set(found))) >= 4, {kind: found.count(kind) for kind in set(found)}


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_pytorchs_ways_decide_as_the_reference(case: Case) -> None:
    given = against(case)
    found = sample_by_ways(case.logits, case.state, case.slots, case.positions, case.features, given)
    assert found.tolist() == reference.sample(case.logits, case.state, case.slots, case.positions, given).tolist()


def _check(case: Case, device: str, *, counted: bool) -> None:
    rows = [row for row, features in enumerate(case.features) if draws_on_device(features)]
    assert rows == list(range(len(case.features)))
    given, state = against(case), on(case.state, device)
    next_tokens = torch.full((len(state.integers),), -1, device=device) if counted else None
    found = triton_draw(
        case.logits.to(device), state, case.slots.to(device), case.positions.to(device), next_tokens,
        against=moved(given, device),
    )
    expected = reference.sample(case.logits, case.state, case.slots, case.positions, given)
    assert found.tolist() == expected.tolist()
    if next_tokens is not None:
        wanted = on(case.state, "cpu")
        for row, slot in enumerate(case.slots.tolist()):
            assert int(next_tokens[slot]) == int(expected[row])
            wanted.integers[slot, 3] += 1
            wanted.marks[slot, expected[row]] += GENERATED_ONCE * case.features[row].penalised
        assert all(torch.equal(a.cpu(), b) for a, b in zip(state.tensors(), wanted.tensors(), strict=True))


@pytest.mark.interpreted
@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_interpreted_decides_as_the_reference(case: Case) -> None:
    _check(of_few_biases(case, 12), "cpu", counted=case.logits.shape[1] == 33)


@pytest.mark.gpu
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: case.name)
def test_a_gpu_decides_as_the_reference(case: Case, counted: bool) -> None:
    _check(case, "cuda", counted=counted)


def _check_drafts(case: Case, device: str) -> None:
    expected, kept = drafted(case)
    odds = Odds.allocate(len(kept.free), DRAFTS, torch.device(device))
    odds.free.copy_(kept.free)
    logits = drafter_logits(case)
    found = triton_draw(
        logits.to(device), on(case.state, device), case.slots.to(device), case.positions.to(device), drafted=(odds, PLACE)
    )
    drawn = reference.sample(logits, case.state, case.slots, case.positions)
    free = kept.free[case.slots] & (case.state.numbers[case.slots, 0] > 0)
    assert found.tolist() == torch.where(free, expected, drawn).tolist()
    assert free.any() and odds.counts[case.slots.to(device), PLACE].cpu().gt(0).tolist() == free.tolist()
    for slot in case.slots[free].tolist():
        q, wanted = (reference.odds_of(moved(each, "cpu"), slot, PLACE, logits.shape[1]) for each in (odds, kept))
        assert torch.allclose(q, wanted, atol=1e-5, rtol=1e-4, equal_nan=True)  # NaN where no token is possible


@pytest.mark.interpreted
@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_interpreted_draws_drafts_with_their_odds(case: Case) -> None:
    _check_drafts(of_few_biases(case, 12), "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: case.name)
def test_a_gpu_draws_drafts_with_their_odds(case: Case) -> None:
    _check_drafts(case, "cuda")


def _settings(slot: int, rng: torch.Generator) -> tuple[list[int], list[float]]:
    top_k = (0, 20, 64, 0, 1000)[slot % 5]
    top_p = 1.0 if top_k > ODDS else (1.0, 0.9, 0.3, 0.99)[int(torch.randint(0, 4, (1,), generator=rng))]
    return [slot - 5, top_k, 0, 0], [(1.0, 0.7, 1.5, 0.0)[slot % 4], top_p, (0.0, 0.01)[slot % 3 == 0]]


@pytest.mark.gpu
def test_a_captured_draw_follows_drafts_and_odds() -> None:
    check_captured(4)


def check_captured(replays: int) -> None:
    """Drafts and what is drawn against them in one graph of the whole vocabulary's width, replayed with other rows."""
    rows, vocab = 16, 248_320
    rng = torch.Generator().manual_seed(5)
    state = on(SlotState.allocate(rows + 1, vocab, torch.device("cpu")), "cuda")
    odds = Odds.allocate(rows + 1, DRAFTS, torch.device("cuda"))
    drafter, logits = (torch.zeros(rows, vocab, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    slots, positions = torch.arange(rows, device="cuda"), torch.zeros(rows, dtype=torch.int64, device="cuda")
    places = torch.full((rows,), PLACE, device="cuda")

    def both() -> tuple[Tensor, Tensor]:
        drafts = triton_draw(drafter, state, slots, positions, drafted=(odds, PLACE))
        return drafts, triton_draw(logits, state, slots, positions, against=Against(odds, drafts, places))

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drafts, drawn = both()
    found, known = [], 0
    for _ in range(replays):
        logits.copy_(torch.randn(rows, vocab, generator=rng) * 4)
        drafter.copy_(logits.float().cpu() + torch.randn(rows, vocab, generator=rng))
        slots.copy_(torch.randperm(rows + 1, generator=rng)[:rows])
        positions.copy_(torch.randint(0, 2**20, (rows,), generator=rng))
        places.copy_(torch.where(torch.rand(rows, generator=rng) < 0.2, -1, PLACE))
        odds.free.copy_(torch.rand(rows + 1, generator=rng) < 0.8)
        for slot in range(rows + 1):
            integers, numbers = _settings(slot, rng)
            state.integers[slot], state.numbers[slot, :3] = torch.tensor(integers), torch.tensor(numbers, dtype=torch.float64)
        graph.replay()
        given = moved(Against(odds, drafts, places), "cpu")
        expected = reference.sample(logits.float().cpu(), on(state, "cpu"), slots.cpu(), positions.cpu(), given).tolist()
        known += int((given.odds.counts[slots.cpu(), PLACE] > 0).sum())
        found += [(a, b) for a, b in zip(drawn.tolist(), expected, strict=True)]
    assert known > 5 * replays and found == [(b, b) for _, b in found]


def test_a_row_without_a_seed_differs_from_the_plain_draw_and_repeats() -> None:
    """So that the tests above could not pass without looking at drafts; and the same noise gives the same tokens."""
    case = next(c for c in CASES if c.logits.shape[1] == 1025)
    given, plain = against(case), reference.sample(case.logits, case.state, case.slots, case.positions)
    found = [reference.sample(case.logits, case.state, case.slots, case.positions, given).tolist() for _ in range(2)]
    assert found[0] == found[1] != plain.tolist()

