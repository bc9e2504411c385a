"""The benchmarks that `headrace bench` offers: a file is a subcommand.

Each module has a docstring whose first paragraph is the subcommand's help, and

- `Settings`, a frozen dataclass whose fields were made by `headrace.config.setting`: its options;
- `run(settings, console) -> Results`: measures, prints tables for people to `console`, and returns the figures as JSON values,
  units in their names. Raises HeadraceError when nothing could be measured, ConfigError for settings that cannot work.

The command line adds `--json FILE`, which keeps the figures with the machine's facts (`bench.record`). Modules are imported to
list the subcommands, so what is slow to import (torch among it) is imported by `run`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from rich.console import Console

from headrace.registry import Registry

Results = dict[str, Any]

_MODULES = Registry(__name__)


class Scenario(Protocol):
    """What a module of this package has."""

    __doc__: str | None

    @property
    def Settings(self) -> type[Any]: ...

    @property
    def run(self) -> Callable[[Any, Console], Results]: ...


def names() -> tuple[str, ...]:
    return _MODULES.names()


def scenario(name: str) -> Scenario:
    """Raises KeyError for a name that there is not."""
    return cast(Scenario, _MODULES[name])
