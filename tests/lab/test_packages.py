"""Packages are fetched once, whole or not at all."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from lab.packages import MissingPackage, Package

PACKAGE = Package("npm", "@somebody/texts", "1.2.3")


@pytest.fixture()
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that packs one file, and counts its calls; it fails while `broken` exists."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "text.txt").write_text("Call me Ishmael.")
    with tarfile.open(folder / "packed.tgz", "w:gz") as archive:
        archive.add(folder / "text.txt", "package/text.txt")
    script = folder / "npm"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/calls\n'
        f"[ -e {folder}/broken ] && {{ echo no such version >&2; exit 1; }}\ncp {folder}/packed.tgz .\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_fetched_once(client: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert (PACKAGE.unpacked(tmp_path / "down") / "package" / "text.txt").read_text() == "Call me Ishmael."
    assert (client / "calls").read_text() == "pack --silent @somebody/texts@1.2.3\n"


def test_a_failure_is_named_and_tried_again(client: Path, tmp_path: Path) -> None:
    (client / "broken").touch()
    with pytest.raises(MissingPackage, match="npm @somebody/texts 1.2.3: npm pack .* failed: no such version"):
        PACKAGE.unpacked(tmp_path / "down")
    (client / "broken").unlink()
    assert PACKAGE.unpacked(tmp_path / "down").is_dir()


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackage, match="apt-get is not installed"):
        Package("deb", "some-texts", "1").unpacked(tmp_path)
