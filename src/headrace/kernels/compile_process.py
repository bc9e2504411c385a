"""CUDA C++ compiled in processes of their own: NVRTC takes one source at a time in a process.

    python -m headrace.kernels.compile_process

is one of them. It needs no GPU, reads requests from its standard input, writes the answers to its standard output, and ends
with the input: whatever becomes of the process that asks, it does not stay.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from typing import BinaryIO, cast

from headrace.kernels import nvrtc

_BROKEN = OSError, EOFError, pickle.UnpicklingError
"""What is raised where the other process is not there any more, or was never one that answers."""
_PATIENCE_S = 5.0


class CompileProcesses:
    """As many as compile at once. For threads: `compile` of each uses one that is idle, or a new one."""

    def __init__(self) -> None:
        self._idle: list[_CompileProcess] = []

    def compile(self, source: str, options: tuple[str, ...], kind: str) -> bytes:
        """As `nvrtc.compile_here`, which is what remains if there can be no other process."""
        try:
            process = self._take()
        except OSError:
            return nvrtc.compile_here(source, options, kind)
        try:
            answer = process.ask((source, options, kind))
        except _BROKEN:
            process.end()
            return nvrtc.compile_here(source, options, kind)
        self._idle.append(process)
        if isinstance(answer, str):
            raise nvrtc.CompileError(answer)
        return answer

    def close(self) -> None:
        """End those that are idle."""
        while self._idle:
            self._idle.pop().end()

    def _take(self) -> _CompileProcess:
        try:
            return self._idle.pop()
        except IndexError:
            return _CompileProcess()


class _CompileProcess:
    """Another process. It finds modules where this one does, and is not told of a Ctrl-C in this one's terminal."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
        )

    def ask(self, request: tuple[str, tuple[str, ...], str]) -> bytes | str:
        """Code, or NVRTC's messages. Raises _BROKEN."""
        to, answers = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        pickle.dump(request, to)
        to.flush()
        answer: bytes | str = pickle.load(answers)
        return answer

    def end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                cast(BinaryIO, pipe).close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def answer(requests: BinaryIO, answers: BinaryIO) -> None:
    """Until there are no more requests."""
    while True:
        try:
            source, options, kind = pickle.load(requests)
        except EOFError:
            return
        try:
            made: bytes | str = nvrtc.compile_here(source, options, kind)
        except nvrtc.CompileError as error:
            made = str(error)
        pickle.dump(made, answers)
        answers.flush()


def main() -> None:
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        with suppress(BrokenPipeError):
            answer(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
