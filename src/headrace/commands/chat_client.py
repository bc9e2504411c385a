"""The chat routes of a running server, as one terminal needs them: standard library only, so that it starts at once."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import ConfigError, HeadraceError

CONNECT_TIMEOUT_S = 10.0


class ChatClient:
    """A server at `url` ("http://127.0.0.1:8000"). Failures are HeadraceErrors of one line, in its own words if any."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url must look like http://127.0.0.1:8000, not {url!r}")
        self.url = parts._replace(path=parts.path.rstrip("/").removesuffix("/v1")).geturl()
        self._parts = urlsplit(self.url)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        """The name of the model that is served."""
        connection, response = self._send("GET", "/v1/models", None)
        try:
            return str(json.load(response)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise HeadraceError(f"{self.url} does not answer as an OpenAI-compatible server") from None
        finally:
            connection.close()

    def stream(self, body: Mapping[str, Any]) -> Generator[str]:
        """Text of the answer as it comes. Closing the iterator closes the connection, and the server stops generating."""
        connection, response = self._send("POST", "/v1/chat/completions", {**body, "stream": True})
        try:
            for event in _events(response):
                if "error" in event:
                    raise HeadraceError(_message(event))
                for choice in event.get("choices", ()):
                    if text := choice["delta"].get("content"):
                        yield text
        except (OSError, http.client.HTTPException) as error:
            raise HeadraceError(f"the connection to {self.url} broke: {error}") from None
        finally:
            connection.close()

    def _send(self, method: str, path: str, body: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.netloc.rpartition("@")[2], timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # a long prompt may take any time; Ctrl-C is the limit
            connection.request(method, self._parts.path + path, json.dumps(body) if body else None, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise HeadraceError(f"no server at {self.url} ({error}); start one with `headrace serve`") from None
        except BaseException:  # Ctrl-C while the server has not answered yet
            connection.close()
            raise
        if response.status != http.client.OK:
            text = response.read()
            connection.close()
            raise HeadraceError(_refusal(response, text))
        return connection, response


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each `data:` line of an event stream, up to [DONE]; comments are skipped."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise HeadraceError("the server ended the answer early")


def _refusal(response: http.client.HTTPResponse, body: bytes) -> str:
    try:
        return f"{_message(json.loads(body))} (HTTP {response.status})"
    except ValueError:
        return f"HTTP {response.status} {response.reason}"


def _message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    text = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(text or answer).split())
