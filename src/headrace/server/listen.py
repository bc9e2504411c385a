"""The socket that the server listens on."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket

from headrace.config import ServerConfig
from headrace.errors import ConfigError

BACKLOG = 4096
"""Connections that may wait to be accepted."""


def check_exposure(config: ServerConfig) -> None:
    """Raises ConfigError for an address that others can reach without an API key, and for a key that no header can carry."""
    if not all(config.api_key):
        raise ConfigError("api_key must not be empty")
    if not all(key.isprintable() and key == key.strip() for key in config.api_key):
        raise ConfigError("api_key must be printable text without spaces around it: no client could send another")
    if not config.api_key and not is_loopback(config.host):
        raise ConfigError(f"host {config.host} can be reached by others: give an --api-key, or listen on 127.0.0.1")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not accept connections yet. Raises ConfigError when the address cannot be had."""
    if not 0 <= port < 65536:
        raise ConfigError(f"port must be from 0 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError(f"host {host!r} is no address of this machine: {error.strerror}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from None
    return sock


def listen(sock: socket.socket) -> None:
    """Accept connections. Raises ConfigError if another process bound the same port meanwhile and was first to listen.

    uvloop listens too, but where that fails it does not say so.
    """
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise ConfigError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}") from None


def url(host: str, sock: socket.socket) -> str:
    """Where a bound socket is reached: the host as it was given and the port that it really has."""
    port = sock.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def allow_many_connections() -> None:
    """Raise this process's limit of open files to what the system grants: each waiting client holds one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
