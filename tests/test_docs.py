"""Documents that name files, targets and versions name real ones."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.commands import doctor
from headrace.commands.settings_table import page
from headrace.models import MODELS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "lab" / "README.md", *(ROOT / "docs").rglob("*.md")])
TOPS = ("src", "tests", "benchmarks", "lab")
SOURCES = [f"/{file.relative_to(ROOT).as_posix()}" for top in TOPS for file in (ROOT / top).rglob("*.py")]



@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def test_the_settings_page_is_what_config_says() -> None:
    assert (ROOT / "docs/settings.md").read_text() == page(), "run `make settings`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_files_and_links_exist(document: Path) -> None:
    text = document.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (document.parent / link).exists(), link
    for name in re.findall(r"(?<![\w/.~<>*-])((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)\b", text):
        assert any(source.endswith(f"/{name}") for source in SOURCES), name


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"(?:^    |`)make ([a-z]+)", document.read_text(), re.MULTILINE):
            assert target in targets, f"{document}: make {target}"


def test_the_readme_lists_every_model() -> None:
    text = (ROOT / "README.md").read_text()
    for name in MODELS:
        assert f"(`{name}`)" in text


def test_doctor_asks_for_the_versions_that_the_project_takes(project: dict[str, Any]) -> None:
    oldest, newest = doctor.PYTHONS
    assert project["requires-python"] == f">=3.{oldest[1]},<3.{newest[1] + 1}"
    oldest, newest = doctor.TORCHES
    assert f"torch>=2.{oldest[1]},<2.{newest[1] + 1}" in project["dependencies"]


def test_the_installer_and_the_constraints_name_one_pytorch() -> None:
    script = re.search(r"^torch_version=(\S+)$", (ROOT / "tools/install.sh").read_text(), re.MULTILINE)
    assert script
    assert f"torch=={script[1]}" in (ROOT / "constraints/cpu.txt").read_text().splitlines()
