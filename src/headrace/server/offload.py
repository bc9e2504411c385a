"""Long work beside the event loop, which other clients' tokens pass through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

INLINE_SIZE = 4096
"""Work on so many characters or tokens takes a millisecond or two, less than a decode step."""
T = TypeVar("T")


async def offload(size: int, work: Callable[[], T]) -> T:
    """`work()`, in a thread if it handles more than INLINE_SIZE characters or tokens."""
    return work() if size <= INLINE_SIZE else await asyncio.to_thread(work)
