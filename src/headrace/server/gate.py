"""What every request passes on its way to a route and back: a plain path, a request id, the API key, the last resort."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Iterable
from hashlib import sha256
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.errors import ApiError, as_api_error, error_response

OPEN_PATHS = frozenset({"/health", "/ping"})
LOG = logging.getLogger(__name__)
_TENANT = "headrace.tenant"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """ASGI middleware. Without keys every request passes; with them all but OPEN_PATHS need one, which is their tenant."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        scope["path"] = plain_path(scope["path"])
        key = self._known_key(headers)
        if key is None and self._keys and scope["path"] not in OPEN_PATHS:
            await _UNAUTHORIZED(scope, receive, send_with_id)
            return
        scope[_TENANT] = sha256(key).hexdigest() if key else ""
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            LOG.exception("%s %s failed (request %s)", scope["method"], scope["path"], request_id.decode())
            if started:
                raise  # the answer cannot be completed: the server closes the connection
            await error_response(as_api_error(error))(scope, receive, send_with_id)

    def _known_key(self, headers: Headers) -> bytes | None:
        given = tuple(key.encode("latin-1") for key in _given_keys(headers))
        return next((known for known in self._keys if any(hmac.compare_digest(known, key) for key in given)), None)


def tenant_of(scope: Scope) -> str:
    """Who sent a request that came through the gate: a name for each API key, "" without any."""
    tenant: str = scope.get(_TENANT, "")
    return tenant


_UNAUTHORIZED = error_response(
    ApiError(401, "an API key is needed: authorization: Bearer KEY, or x-api-key: KEY", code="invalid_api_key",
             headers={"www-authenticate": "Bearer"})
)


def _given_keys(headers: Headers) -> list[str]:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [headers.get("x-api-key", ""), bearer.strip() if scheme.lower() == "bearer" else ""]
    return [key for key in keys if key]


def _request_id(headers: Headers) -> bytes:
    """The client's own if it is harmless."""
    given = headers.get("x-request-id", "")
    return (given if _SANE_ID.fullmatch(given) else uuid4().hex).encode()


def plain_path(path: str) -> str:
    """Without doubled slashes and without one at the end: some clients join base URLs carelessly."""
    return re.sub("/{2,}", "/", path).rstrip("/") or "/"
