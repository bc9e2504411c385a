"""`headrace serve` as a user starts it: a process of its own, on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import psutil


class ServerProcess:
    """A context manager. Ready when entered; ended by SIGTERM, and checked to end cleanly, when left."""

    def __init__(self, model: Path, *flags: str, log: Path) -> None:
        self._command = [str(Path(sys.executable).with_name("headrace")), "serve", str(model), "--port", "0", *flags]
        self._log = log

    def __enter__(self) -> ServerProcess:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # tiny models: more threads only get in each other's way
        self._stderr = self._log.open("w")
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._stderr, text=True, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            self.process.kill()
            raise AssertionError(f"not ready: {line!r}\n{self._log.read_text()}")
        self.url = found.group()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._stderr.close()
        if error is None:
            assert code == 0, self._log.read_text()

    def kill(self) -> None:
        """End both processes as a power cut would."""
        front = psutil.Process(self.process.pid)
        for process in (*front.children(), front):
            process.kill()
        self.process.wait(30)
        self._stderr.close()

    def resident_bytes(self) -> tuple[int, int]:
        """Resident memory of (the front, its engine)."""
        front = psutil.Process(self.process.pid)
        (engine,) = front.children()
        return front.memory_info().rss, engine.memory_info().rss
