"""What a client sees when something fails: one JSON shape, OpenAI's, for every status."""

from __future__ import annotations

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import EngineUnavailableError, HeadraceError, QueueFullError, RequestError

UNAVAILABLE_RETRY_S = 5
LONGEST_MESSAGE = 2000
"""In characters; of a longer one the middle is left out."""

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


class ApiError(HeadraceError):
    """A failure with its HTTP status. Statuses without a type of their own are the client's: invalid_request_error."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}


def as_api_error(error: Exception) -> ApiError:
    """Any exception as the ApiError that a client is shown; what was not raised on purpose is a 500 without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full", headers={"retry-after": str(error.retry_after_s)})
    if isinstance(error, EngineUnavailableError):
        return ApiError(503, str(error), code="engine_unavailable", headers={"retry-after": str(UNAVAILABLE_RETRY_S)})
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    if isinstance(error, RequestValidationError):
        return _from_validation(error)
    return ApiError(500, "internal error; the server's log has the details", code="internal_error")


def _from_validation(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    return ApiError(400, f"{param or 'request'}: {first['msg']}", param=param)


def error_json(error: ApiError) -> bytes:
    """The body of an error answer, and the data of an error inside a stream."""
    kind = _TYPES.get(error.status, "invalid_request_error")
    message = str(error)
    if len(message) > LONGEST_MESSAGE:  # it quotes what the client sent
        message = message[: LONGEST_MESSAGE // 2] + " ... " + message[-LONGEST_MESSAGE // 2 :]
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": error.param, "code": error.code}})


def error_response(error: ApiError) -> Response:
    return Response(error_json(error), error.status, error.headers, "application/json")


async def handle(request: Request, error: Exception) -> Response:
    """The app's handler of exceptions that were raised on purpose."""
    shown = as_api_error(error)
    return error_response(_routing_error(request, shown) if isinstance(error, HTTPException) else shown)


def _routing_error(request: Request, error: ApiError) -> ApiError:
    """Starlette's "Not Found" and "Method Not Allowed", said in full."""
    path = request.url.path
    if error.status == 404:
        return ApiError(404, f"there is no route {path}", code="route_not_found", headers=error.headers)
    if error.status == 405:
        return ApiError(405, f"{path} does not take {request.method}", code="method_not_allowed", headers=error.headers)
    return error
