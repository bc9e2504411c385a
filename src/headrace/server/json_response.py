"""A JSON answer."""

from __future__ import annotations

import msgspec
from starlette.responses import Response


def json_response(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
