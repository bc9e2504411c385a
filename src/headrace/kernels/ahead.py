"""Kernels compiled before they are needed, all at once. Needs no Triton.

Compilers start from what a launch is given, and nothing else knows that as well: so what will run is called once without being
run. Triton's compilers work side by side on threads, and NVRTC in processes, since in one it takes one source at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from importlib.util import find_spec
from typing import Any

from headrace.hardware import usable_cores
from headrace.kernels.compile_process import CompileProcesses
from headrace.kernels.nvrtc import compiling_by

_MOST_PROCESSES = 12
"""Each takes some 70 MB."""


class _Queue:
    """Jobs for threads, each taken once."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._taken: set[object] = set()

    def submit(self, key: object, job: Callable[[], object]) -> None:
        if key not in self._taken:
            self._taken.add(key)
            self._pool.submit(copy_context().run, job)


_queue: ContextVar[_Queue | None] = ContextVar("queue", default=None)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """In this thread, kernels that are launched meanwhile are compiled instead; leaving waits for them.

    What a kernel would have written stays as it was, so nothing may be made of it but inputs of other kernels: no indices
    into tensors, no decisions. What does not compile is told when it is launched. To be used when nothing else in the
    process launches Triton kernels.
    """
    cores = usable_cores()
    cuda, triton = ThreadPoolExecutor(min(cores, _MOST_PROCESSES), "compile-cuda"), ThreadPoolExecutor(cores, "compile")
    processes = CompileProcesses()
    try:
        with cuda, triton, compiling_by(processes.compile):
            token = _queue.set(_Queue(cuda))
            try:
                with _triton_ahead(triton):
                    yield
            finally:
                _queue.reset(token)
    finally:
        processes.close()


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
        with AsyncCompileMode(_Launchable(pool), ignore_errors=True):
            yield
    finally:
        JITFunction.run = run


class _Launchable(Executor):
    """For AsyncCompileMode: has what launches a kernel compiled as well. Triton 3.6 asks a C compiler for that when a kernel is
    first launched, once for all that have the same types of arguments.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._taken: set[tuple[str, ...]] = set()

    def submit(self, compile: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(self._launchable, compile, *args, **kwargs)

    def _launchable(self, compile: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from triton.runtime import driver

        kernel = compile(*args, **kwargs)
        kinds = tuple(kernel.src.signature.values())
        if kinds not in self._taken:
            self._taken.add(kinds)
            with suppress(Exception):  # told when it is launched
                driver.active.launcher_cls(kernel.src, kernel.metadata)
        return kernel
