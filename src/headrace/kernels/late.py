"""Kernels that are compiled while somebody waits for them. Rehearsal should have compiled them before, so each is told."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from threading import Event
from typing import Any

LOG = logging.getLogger(__name__)
_serving = Event()


def expect_compiles() -> None:
    """None is told while an engine starts."""
    _serving.clear()


def warn_of_compiles() -> None:
    """From now on, whatever this process compiles. Needs no Triton."""
    _serving.set()
    if find_spec("triton") is not None:
        from triton import knobs

        knobs.compilation.listener = _note_triton


def note_compiled(kernel: str, seconds: float) -> None:
    """kernel: its name and form."""
    if _serving.is_set():
        LOG.warning("kernel compiled while serving, in %.2f s: %s", seconds, kernel)


def _note_triton(*, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
    """Triton's CompilationListener. times: microseconds."""
    if not cache_hit:
        note_compiled(f"{src.name} {dict(src.signature)} {dict(src.constants)}", times.total / 1e6)
