"""When a step waits for its host: only where all of the last few took longer than the device does."""

from __future__ import annotations

from headrace.speculate.loop_time import LoopTime


def told(*steps: tuple[float, float]) -> float:
    loop = LoopTime()
    for taken, device in steps:
        loop.note(taken, device)
    return loop.least_s


def test_it_is_the_least_that_steps_took() -> None:
    assert told(*[(2.0, 1.0)] * 7, (1.8, 1.2)) == 1.8
    assert told(*[(9.0, 1.0)] * 4, *[(2.0, 1.0)] * 8) == 2.0


def test_where_the_host_keeps_up_it_is_nothing() -> None:
    assert told() == told(*[(2.0, 1.0)] * 7) == 0.0
    assert told(*[(2.0, 1.0)] * 7, (1.1, 1.0)) == 0.0
    assert told(*[(1.05, 1.0), (50.0, 1.0)] * 9) == 0.0  # prompts in between
