"""Rest after a write that failed, and one log line for a trouble, however often it comes back until a write succeeds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

LOG = logging.getLogger(__name__)


class Pause:
    """While `active`, nothing is to be written. clock: seconds."""

    def __init__(self, directory: Path, pause_s: float, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._pause_s = pause_s
        self._clock = clock
        self._until_s = 0.0
        self._trouble: int | None = None  # errno of the last write, if it failed

    @property
    def active(self) -> bool:
        return self._trouble is not None and self._clock() < self._until_s

    def failed(self, error: OSError) -> None:
        self._until_s = self._clock() + self._pause_s
        if error.errno != self._trouble:
            LOG.warning(
                "ssd cache: %s cannot be written to: %s; tried again every %g s", self._directory, error.strerror, self._pause_s
            )
        self._trouble = error.errno or 0

    def succeeded(self) -> None:
        if self._trouble is not None:
            LOG.info("ssd cache: %s can be written to again", self._directory)
        self._trouble = None
