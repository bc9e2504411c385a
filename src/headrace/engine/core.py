"""The loop: receive, plan, run, commit, emit. One EngineCore drives one scheduler and one runner, in one thread."""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

from headrace.errors import EngineUnavailableError, HeadraceError
from headrace.types import EngineStats, Request, StepPlan, StepResult, TokenEvent

LOG = logging.getLogger(__name__)
_READ_WAIT_S = 0.005
"""The longest that the loop waits for a read before it looks for new requests."""


class Scheduler(Protocol):
    """What the loop asks of `scheduler.scheduler.Scheduler`."""

    def add(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def plan(self) -> StepPlan | None: ...

    def commit(self, result: StepResult) -> list[TokenEvent]: ...

    def drain_events(self) -> list[TokenEvent]: ...

    def stats(self) -> EngineStats: ...

    def wait(self, seconds: float) -> bool: ...

    @property
    def outlived(self) -> bool: ...

    def close(self) -> None: ...


class PendingStep(Protocol):
    """A step that the device is working on; `result` waits for it."""

    def result(self) -> StepResult: ...


class Runner(Protocol):
    """What the loop asks of `runner.runner.Runner`."""

    def launch(self, plan: StepPlan) -> PendingStep: ...

    def close(self) -> None: ...


class EngineFailedError(EngineUnavailableError):
    """A step failed, so the device's state cannot be trusted. `events` end every request that the engine held."""

    def __init__(self, message: str, events: list[TokenEvent]) -> None:
        super().__init__(message)
        self.events = events


class EngineCore:
    """The loop over at most `depth` uncommitted plans: 1 is the plain loop, 2 the overlapped one.

    The overlapped loop plans and launches step n + 1 and only then waits for step n, so the device always has work behind the
    step that it is at. A message that ends in step n, by a token that nobody could know, has a row in step n + 1 already: it
    runs to its end, in the slot and pages that stay its own until then, and what it yields is dropped.

    After a step that raised, the core is broken: `add` and `step` raise EngineUnavailableError.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, *, depth: int = 1) -> None:
        if depth < 1:
            raise ValueError(f"a loop needs at least one plan, not {depth}")
        self._scheduler = scheduler
        self._runner = runner
        self.depth = depth
        self._flight: deque[PendingStep] = deque()
        self._open: dict[str, None] = {}  # requests without a finish_reason yet, in order of arrival
        self._broken = ""
        self._closed = False

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a step uncommitted, so that `step` is worth calling."""
        return bool(self._open or self._flight)

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Ids of the unfinished requests, in order of arrival."""
        return tuple(self._open)

    def add(self, request: Request) -> None:
        """Queue a request. Raises ValueError for an id that is held already."""
        self._check()
        if request.id in self._open:
            raise ValueError(f"request {request.id!r} is running already")
        self._scheduler.add(request)
        self._open[request.id] = None

    def cancel(self, request_id: str) -> None:
        """End a request; its last event comes out of the next `step`. Unknown and finished ids are ignored."""
        if request_id in self._open and not self._broken:
            self._scheduler.cancel(request_id)

    def step(self) -> list[TokenEvent]:
        """Launch a step, wait for the oldest one if that makes `depth`, and return the news.

        Raises EngineFailedError, once, when any part of it fails.
        """
        self._check()
        events: list[TokenEvent] = []
        try:
            self._turn(events)
        except Exception as error:
            raise self.fail(error, events) from error
        except BaseException as interruption:
            self._broken = f"a step was interrupted by {type(interruption).__name__}"
            self._let_go()
            raise
        for event in events:
            if event.finish_reason is not None:
                self._open.pop(event.request, None)
        return events

    def _turn(self, events: list[TokenEvent]) -> None:
        plan = self._scheduler.plan()
        if plan is not None:
            self._flight.append(self._runner.launch(plan))
        idle = not self._flight
        if len(self._flight) == self.depth or (plan is None and not idle):
            events += self._scheduler.commit(self._flight.popleft().result())
        events += self._scheduler.drain_events()
        if idle and not events and self._open and not self._scheduler.wait(_READ_WAIT_S):
            raise HeadraceError(f"{len(self._open)} requests are unfinished but the scheduler plans nothing")

    @property
    def outlived(self) -> bool:
        """Whether something of what is computed outlives the engine."""
        return self._scheduler.outlived

    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def close(self) -> None:
        """Release the runner's memory, once. The core cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            if self._scheduler.outlived and not self._broken:
                self._leave()
            self._flight.clear()
            self._broken = self._broken or "it is closed"
            self._runner.close()

    def _leave(self) -> None:
        """Have what outlives the engine copied out and written."""
        try:
            for request in self._open:
                self._scheduler.cancel(request)
            for _ in range(2):  # rows in flight, then a plan of copies alone
                self._turn([])
                while self._flight:
                    self._turn([])
            self._scheduler.close()
        except Exception:
            LOG.exception("what was computed last is not kept")

    def fail(self, error: BaseException, events: list[TokenEvent]) -> EngineFailedError:
        """Break the core. The returned error holds `events` and then an "error" event for each request still open."""
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        self._broken = reason
        finished = {event.request for event in events if event.finish_reason is not None}
        message = f"the engine failed: {reason}"
        ended = [TokenEvent(id, finish_reason="error", error=message) for id in self._open if id not in finished]
        self._let_go()
        return EngineFailedError(message, events + ended)

    def _let_go(self) -> None:
        """Nothing is held for anybody any more."""
        self._open.clear()
        self._flight.clear()

    def _check(self) -> None:
        if self._broken:
            raise EngineUnavailableError(f"the engine cannot go on: {self._broken}")
