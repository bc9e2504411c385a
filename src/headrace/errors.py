"""Errors that a user sees. Each message is one line that names the culprit."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error that headrace raises on purpose."""


class CheckpointError(HeadraceError):
    """A model that cannot be loaded. The message names the file or the field; the command line exits with 2."""


class ConfigError(HeadraceError):
    """A setting, or a combination of settings, that cannot work. The command line exits with 2."""


class RequestError(HeadraceError):
    """A request that can never work (HTTP 400).

    `param` is the request field at fault, `code` a stable machine-readable word such as
    "context_length_exceeded".
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(HeadraceError):
    """The engine holds as many requests as it accepts (HTTP 429); try again after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailableError(HeadraceError):
    """The engine is draining, has died, or its step loop has stopped (HTTP 503)."""
