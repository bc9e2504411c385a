"""Lazy tables: every module of a package is an entry, found by its file name and imported when it is asked for.

A model, a format, a kernel, a route is added by adding its file; the registry's meta-test then runs the shared suite
on it. Nothing is registered by hand.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


class Registry:
    """The modules of `package` (a dotted name) as a read-only table, file name -> module. `skip` names are machinery."""

    def __init__(self, package: str, *, skip: tuple[str, ...] = ()) -> None:
        self.package = package
        self._skip = frozenset(skip)

    def names(self) -> tuple[str, ...]:
        """Entries in alphabetical order, without importing them."""
        package = importlib.import_module(self.package)
        found = (m.name for m in pkgutil.iter_modules(package.__path__))
        return tuple(sorted(n for n in found if n not in self._skip and not n.startswith("_")))

    def __getitem__(self, name: str) -> ModuleType:
        if name not in self.names():
            raise KeyError(f"{self.package} has no entry {name!r}; it has {', '.join(self.names())}")
        return importlib.import_module(f"{self.package}.{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
