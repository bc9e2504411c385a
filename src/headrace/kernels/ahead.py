"""Kernels compiled before they are needed, all at once on threads. Needs no Triton.

Compilers start from what a launch is given, and nothing else knows that as well: so what will run is called once without being
run. Triton's compilers work side by side; NVRTC takes one source at a time, beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

from headrace.hardware import usable_cores


class _Queue:
    """Jobs for one thread, each taken once."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._taken: set[object] = set()

    def submit(self, key: object, job: Callable[[], object]) -> None:
        if key not in self._taken:
            self._taken.add(key)
            self._pool.submit(job)


_queue: ContextVar[_Queue | None] = ContextVar("queue", default=None)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """In this thread, kernels that are launched meanwhile are compiled instead; leaving waits for them.

    What a kernel would have written stays as it was, so nothing may be made of it but inputs of other kernels: no indices
    into tensors, no decisions. What does not compile is told when it is launched. To be used when nothing else in the
    process launches Triton kernels.
    """
    with ThreadPoolExecutor(1, "compile-cuda") as one, ThreadPoolExecutor(usable_cores(), "compile") as many:
        token = _queue.set(_Queue(one))
        try:
            with _triton_ahead(many):
                yield
        finally:
            _queue.reset(token)


def only_compiles(key: object, job: Callable[[], object]) -> bool:
    """For kernels that are not Triton's: whether they are not to be launched now; then `job` compiles, once for each key."""
    queue = _queue.get()
    if queue is not None:
        queue.submit(key, job)
    return queue is not None


@contextmanager
def _triton_ahead(pool: ThreadPoolExecutor) -> Iterator[None]:
    if find_spec("triton") is None:
        yield
        return
    from triton import AsyncCompileMode
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)  # as JITFunction.warmup

    JITFunction.run = compile_only
    try:
        with AsyncCompileMode(pool, ignore_errors=True):
            yield
    finally:
        JITFunction.run = run
