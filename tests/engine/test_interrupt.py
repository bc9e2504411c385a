"""Ctrl-C waits for the end of a step."""

from __future__ import annotations

import signal
import threading

import pytest

from headrace.engine.interrupt import DeferredInterrupt


@pytest.fixture(autouse=True)
def _handler_is_python_s():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_waits_for_the_check():
    steps = []
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt() as interrupt:
        for step in range(5):
            if step == 2:
                ctrl_c()
            steps.append(step)
            interrupt.check()
    assert steps == [0, 1, 2]


def test_it_waits_for_the_exit():
    with pytest.raises(KeyboardInterrupt):
        with DeferredInterrupt():
            ctrl_c()
            reached = True
    assert reached


def test_a_second_one_acts_at_once():
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        ctrl_c()
        ctrl_c()
        raise AssertionError("not reached")


def test_an_error_of_the_step_is_not_hidden():
    with pytest.raises(ZeroDivisionError), DeferredInterrupt():
        ctrl_c()
        raise ZeroDivisionError


def test_the_programs_own_handler_decides():
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with DeferredInterrupt() as interrupt:
            for _ in range(2):
                ctrl_c()
                assert len(seen) == _
                interrupt.check()
                assert len(seen) == _ + 1
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("disposition", [signal.SIG_IGN, signal.SIG_DFL])
def test_other_dispositions_are_left_alone(disposition: signal.Handlers):
    signal.signal(signal.SIGINT, disposition)
    try:
        with DeferredInterrupt() as interrupt:
            assert signal.getsignal(signal.SIGINT) is disposition
            interrupt.check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_have_no_part_in_it():
    def run() -> None:
        with DeferredInterrupt() as interrupt:
            interrupt.check()
        done.set()

    done = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done.is_set()
