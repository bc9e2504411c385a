"""When the loop reports figures."""

from __future__ import annotations

from headrace.engine.heartbeat import STATS_EVERY_S, Pulse


def test_a_busy_loop_reports_at_most_20_times_a_second():
    pulse = Pulse()
    reports = sum(pulse.stats_due(step / 1000, idle=False) for step in range(1000))
    assert reports == round(1 / STATS_EVERY_S) == 20


def test_the_figures_settle_as_soon_as_the_loop_is_idle():
    pulse = Pulse()
    assert pulse.stats_due(0.0, idle=False)
    assert not pulse.stats_due(0.01, idle=False)
    assert pulse.stats_due(0.02, idle=True)
    assert not pulse.stats_due(0.03, idle=True)
    assert pulse.stats_due(0.52, idle=True)
