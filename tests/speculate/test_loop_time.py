"""When a step waits for its host: only where most of the last ones took longer than the device does."""

from __future__ import annotations

from headrace.speculate.loop_time import LoopTime


def told(*steps: tuple[float, float]) -> float:
    loop = LoopTime()
    for taken, device in steps:
        loop.note(taken, device)
    return loop.least_s


def test_it_is_what_the_quicker_steps_took() -> None:
    assert told(*[(2.0, 1.0)] * 13, *[(1.8, 1.2)] * 3) == 2.0
    assert told(*[(2.0, 1.0)] * 11, *[(1.8, 1.2)] * 5) == 1.8
    assert told(*[(9.0, 1.0)] * 8, *[(2.0, 1.0)] * 16) == told(*[(9.0, 1.0)] * 8, *[(2.0, 1.0)] * 8) == 2.0
    assert told(*[(2.0, 1.0)] * 12, *[(1.0, 1.0)] * 4) == 2.0


def test_where_the_host_keeps_up_it_is_nothing() -> None:
    assert told() == told(*[(2.0, 1.0)] * 15) == 0.0
    assert told(*[(2.0, 1.0)] * 11, *[(1.1, 1.0)] * 5) == 0.0
    assert told(*[(1.05, 1.0), (50.0, 1.0)] * 9) == 0.0  # prompts in between
