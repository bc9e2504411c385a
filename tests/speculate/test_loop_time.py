"""What the host takes for a step, and when the device waits for it: of most of the last steps."""

from __future__ import annotations

import math

from headrace.speculate.loop_time import LoopTime


def loop(*steps: tuple[float, float]) -> LoopTime:
    found = LoopTime()
    for taken, waited in steps:
        found.note(taken, waited)
    return found


def test_the_hosts_part_is_what_the_quicker_steps_took_of_it() -> None:
    assert loop(*[(2.0, 0.0)] * 13, *[(1.75, 0.125)] * 3).host_s == 2.0
    assert loop(*[(2.0, 0.0)] * 11, *[(1.75, 0.125)] * 5).host_s == 1.625
    assert loop(*[(9.0, 0.0)] * 8, *[(2.0, 0.0)] * 16).host_s == loop(*[(9.0, 0.0)] * 8, *[(2.0, 0.0)] * 8).host_s == 2.0
    assert loop(*[(2.0, 1.5), (50.0, 0.0)] * 9).host_s == 0.5  # pauses in between
    assert loop().host_s == loop(*[(2.0, 0.0)] * 15).host_s == 0.0


def test_it_keeps_up_where_it_waits_in_some_steps() -> None:
    assert loop().keeps_up and loop(*[(2.0, 0.0)] * 15).keeps_up
    assert loop(*[(2.0, 0.0)] * 11, *[(2.0, 0.25)] * 5).keeps_up and loop(*[(2.0, 1.5), (50.0, 0.0)] * 9).keeps_up
    assert not loop(*[(2.0, 0.0)] * 12, *[(5.0, 3.0)] * 4).keeps_up and not loop(*[(2.0, 0.125)] * 16).keeps_up


def test_what_is_left_beside_the_device_is_what_it_waits_for_in_most_steps() -> None:
    assert loop().spare_s == loop(*[(2.0, 1.0)] * 15).spare_s == math.inf
    assert loop(*[(2.0, 0.5)] * 13, *[(9.0, 0.0)] * 3).spare_s == 0.5
    assert loop(*[(2.0, 0.5)] * 11, *[(9.0, 0.0)] * 5).spare_s == 0.0
