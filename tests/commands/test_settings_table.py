from __future__ import annotations

from pathlib import Path

import pytest

from headrace.commands.options import settings_of
from headrace.commands.settings_table import main, page
from headrace.config import EngineConfig, PlanConfig, ServerConfig


def test_every_setting_has_a_row() -> None:
    text = page()
    for setting in (*settings_of(EngineConfig), *settings_of(ServerConfig), *settings_of(PlanConfig)):
        assert any(f"| `{setting.flag}{end}" in text for end in (" ", "` ")), setting.name  # flags have no value


def test_check_tells_a_stale_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.md"
    assert main(["--check", str(file)]) == 1
    assert main([str(file)]) == 0
    assert main(["--check", str(file)]) == 0
    file.write_text(file.read_text().replace("Port", "Harbour"))
    assert main(["--check", str(file)]) == 1
    assert "make settings" in capsys.readouterr().err
