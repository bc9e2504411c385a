"""Which rows a choice that stays is for."""

from __future__ import annotations

import pytest

from headrace.speculate.controller import Choice
from headrace.speculate.kept_choice import KeptChoice

CHOICE = Choice((2, 0, 4), 0, 5.0, 1.1, 0.5, 0.3, (2, 0, 4), 1.1, (2, 1, 4), 0.2)


def kept(*, guesses: bool = False) -> KeptChoice:
    return KeptChoice.of(CHOICE, [5, 9, 7], [2, 4, 7], guesses=guesses)


def test_rows_have_what_was_chosen_for_them_in_any_order() -> None:
    assert kept().for_rows([5, 9, 7]) == kept()
    fewer = kept().for_rows([7, 5])
    assert fewer is not None
    assert fewer.drafts([7, 7], tries=False) == (4, 2) and fewer.drafts([3, 0], tries=False) == (3, 0)
    assert kept().drafts([9, 9, 9], tries=True) == (2, 1, 4)
    assert fewer.drafts([0, 2], tries=False) == (0, 2)
    assert fewer.drafts([7, 0], tries=False) == (4, 0) and fewer.drafts([0, 3], tries=False) == (0, 2)


def test_a_row_that_comes_is_chosen_for_or_has_what_the_others_have() -> None:
    assert kept().for_rows([5, 6]) is None
    guessed = kept(guesses=True).for_rows([5, 6])
    assert guessed is not None and guessed.drafts([7, 7], tries=True) == (2, 2)


@pytest.mark.parametrize("guesses", [False, True])
def test_what_was_chosen_for_a_slot_is_not_its_next_sequences(guesses: bool) -> None:
    changed = kept(guesses=guesses).without(7).for_rows([5, 7])
    assert changed is None if not guesses else changed is not None and changed.drafts([7, 7], tries=False) == (2, 2)


@pytest.mark.parametrize(("limits", "enough"), [((2, 4, 7), True), ((2, 9, 9), True), ((0, 0, 0), True), ((3, 4, 7), False)])
def test_a_row_that_has_all_it_might_and_may_have_more_is_chosen_for_again(limits: tuple[int, ...], enough: bool) -> None:
    assert kept().suffices(limits) == enough
