"""docs/settings.md, written from config.py.

python -m headrace.commands.settings_table FILE            writes it
python -m headrace.commands.settings_table --check FILE    exits 1 when FILE is not what would be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.commands.options import Setting, settings_of
from headrace.config import EngineConfig, PlanConfig, ServerConfig

INTRODUCTION = """\
# Settings

Generated from `src/headrace/config.py` by `make settings`; do not edit it here. The engine's and the server's are flags of
`headrace serve`; the engine's are also keywords of `LLM(...)`, with underscores for dashes, and most of them, with the plan's,
flags of `headrace plan`, where `--users` takes the place of `--max-seqs`. No environment variable and no file changes them.
"""


def page() -> str:
    """The whole text of docs/settings.md."""
    sections = (("Engine", EngineConfig), ("Server", ServerConfig), ("Plan", PlanConfig))
    return "\n".join([INTRODUCTION, *(line for title, config in sections for line in _section(title, config))])


def _section(title: str, config: type[Any]) -> list[str]:
    rows = [_row(setting) for setting in settings_of(config)]
    return [f"## {title}", "", "| flag | default | what it does |", "|---|---|---|", *rows, ""]


def _row(setting: Setting) -> str:
    usage = f"{setting.flag} {setting.value}".strip().replace("|", "\\|")
    default = "" if setting.default in (None, ()) else f"`{setting.default}`"
    return f"| `{usage}` | {default} | {setting.help} |"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="settings_table")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    if not options.check:
        options.file.write_text(page())
        return 0
    if options.file.exists() and options.file.read_text() == page():
        return 0
    print(f"{options.file} is not what config.py says; run `make settings` and commit it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
