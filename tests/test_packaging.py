"""What is built for pip has every file of the package: kernels' sources, and models that come with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = """
from setuptools import build_meta
build_meta.build_wheel("built")
build_meta.build_sdist("built")
"""
SHIPPED = ("config.json", "NOTICE", "README.md", "loss.png", "model-00001-of-00002.safetensors", "drafter/config.json",
           "drafter/model.safetensors")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, with a model more, and what was built of it. The weights of those that it has are left out."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(
        ROOT / "src" / "headrace", tree / "src" / "headrace", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    for name in SHIPPED:
        file = tree / "src" / "headrace" / "shipped" / "another" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=tree, capture_output=True, text=True, timeout=110)
    assert built.returncode == 0, built.stderr
    assert "Deprecat" not in built.stderr, built.stderr
    return tree


def files_of(tree: Path) -> set[str]:
    source = tree / "src"
    return {file.relative_to(source).as_posix() for file in (source / "headrace").rglob("*") if file.is_file()}


def test_a_wheel_has_every_file(tree: Path) -> None:
    (wheel,) = (tree / "built").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("headrace/shipped/another/drafter/config.json") == b"drafter/config.json"
    assert files_of(tree) <= names
    assert {f"headrace/shipped/another/{name}" for name in SHIPPED} <= names
    assert any(name.endswith("licenses/src/headrace/shipped/another/NOTICE") for name in names)


def test_a_source_distribution_has_every_file(tree: Path) -> None:
    (sdist,) = (tree / "built").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in files_of(tree)} | {"pyproject.toml", "LICENSE", "README.md"} <= names
