"""When a step waits for its host: only where the host waited for next to none of the last ones."""

from __future__ import annotations

import math

from headrace.speculate.loop_time import LoopTime


def loop(*steps: tuple[float, float]) -> LoopTime:
    found = LoopTime()
    for taken, waited in steps:
        found.note(taken, waited)
    return found


def told(*steps: tuple[float, float]) -> float:
    return loop(*steps).least_s


def test_it_is_what_the_quicker_steps_took() -> None:
    assert told(*[(2.0, 0.0)] * 13, *[(1.75, 0.125)] * 3) == 2.0
    assert told(*[(2.0, 0.0)] * 11, *[(1.75, 0.125)] * 5) == 1.625
    assert told(*[(9.0, 0.0)] * 8, *[(2.0, 0.0)] * 16) == told(*[(9.0, 0.0)] * 8, *[(2.0, 0.0)] * 8) == 2.0
    assert told(*[(2.0, 0.0)] * 12, *[(5.0, 3.0)] * 4) == 2.0


def test_where_the_host_keeps_up_it_is_nothing() -> None:
    assert told() == told(*[(2.0, 0.0)] * 15) == 0.0
    assert told(*[(2.0, 0.0)] * 11, *[(2.0, 0.25)] * 5) == 0.0
    assert told(*[(2.0, 1.5), (50.0, 0.0)] * 9) == 0.0  # pauses in between


def test_what_is_left_beside_the_device_is_what_it_waits_for_in_most_steps() -> None:
    assert loop().spare_s == loop(*[(2.0, 1.0)] * 15).spare_s == math.inf
    assert loop(*[(2.0, 0.5)] * 13, *[(9.0, 0.0)] * 3).spare_s == 0.5
    assert loop(*[(2.0, 0.5)] * 11, *[(9.0, 0.0)] * 5).spare_s == 0.0
