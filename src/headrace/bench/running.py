"""What benchmarks do with an engine that runs in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.engine.core import EngineCore
    from headrace.runner.runner import Runner
    from headrace.speculate.costs import StepCosts
    from headrace.types import TokenEvent


def measured_costs(runner: Runner, context: int) -> StepCosts:
    """Raises ConfigError where no steps are captured."""
    costs = runner.step_costs(context)
    if costs is None:
        raise ConfigError("what drafts cost is measured on captured steps: this needs a GPU, and graphs")
    return costs


def unfailed(event: TokenEvent) -> TokenEvent:
    """Raises HeadraceError for a request that failed."""
    if event.error is not None:
        raise HeadraceError(f"request {event.request} failed: {event.error}")
    return event


def give_up(core: EngineCore) -> None:
    """All requests; the engine is idle then."""
    for request in core.open_requests:
        core.cancel(request)
    while core.has_work:
        core.step()
