"""Streams of a device that is not there: what was launched waits in order, and runs in any order that events allow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch


class Stream:
    """Work that was launched, of which the first `done` pieces have run; an entry that is a pair waits for another stream."""

    def __init__(self) -> None:
        self.launched: list[Callable[[], None] | tuple[Stream, int]] = []
        self.done = 0

    def wait_stream(self, other: Stream) -> None:
        self.launched.append((other, len(other.launched)))

    def wait_event(self, event: Event) -> None:
        self.launched.append((event.stream, event.position))

    def run(self) -> bool:
        """The next piece, if there is one and nothing is in its way; whether there was."""
        if self.done == len(self.launched):
            return False
        work = self.launched[self.done]
        if isinstance(work, tuple):
            if work[0].done < work[1]:
                return False
        else:
            work()
        self.done += 1
        return True


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.stream, self.position, self.timed = Stream(), 0, enable_timing

    def record(self, stream: Stream) -> None:
        self.stream, self.position = stream, len(stream.launched)

    def query(self) -> bool:
        return self.stream.done >= self.position

    def elapsed_time(self, end: Event) -> float:
        assert self.timed and end.timed and self.query() and end.query()
        return 1.0


class Device:
    """The steps' stream and two others."""

    def __init__(self, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.saving, self.loading = (Stream() for _ in range(3))
        self.current, self._rng = self.steps, rng
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self._in)
        monkeypatch.setattr(torch.cuda, "Event", Event)

    @contextmanager
    def _in(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def launch(self, work: Callable[[], None]) -> None:
        self.current.launched.append(work)

    def run(self, pieces: int) -> None:
        """So many, each of whatever stream can go on."""
        for _ in range(pieces):
            streams = [self.steps, self.saving, self.loading]
            self._rng.shuffle(streams)
            if not any(stream.run() for stream in streams):
                return
