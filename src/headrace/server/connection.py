"""A client's connection while its request is being answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


async def while_connected(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The result of `work`, which is cancelled at once when the client goes away (ClientGoneError)."""
    task = asyncio.ensure_future(work)
    departure = asyncio.ensure_future(_departure(receive))
    try:
        await asyncio.wait((task, departure), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        departure.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
