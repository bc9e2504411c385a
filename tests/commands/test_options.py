from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.commands.options import settings_of, with_settings
from headrace.config import EngineConfig, PlanConfig, ServerConfig, from_settings, setting


@dataclass(frozen=True, slots=True)
class Every:
    word: str = setting("a", "A word.", choices=("a", "b"))
    count: int | None = setting(None, "A count.", metavar="N")
    share: float = setting(0.5, "A share.")
    name: str | None = setting(None, "A name.")
    key: tuple[str, ...] = setting((), "A key.", metavar="K")
    two_words: bool = setting(False, "A switch.")


def parse(arguments: list[str]) -> dict[str, Any]:
    app, seen = typer.Typer(), {}

    @app.command()
    @with_settings(Every)
    def command(model: Annotated[str, typer.Argument()] = "none", *, every: Mapping[str, Any]) -> None:
        seen.update(every, model=model)

    result = CliRunner().invoke(app, arguments)
    if result.exit_code:
        raise SystemExit(result.exit_code)
    return seen


def test_nothing_given_is_the_fields_defaults() -> None:
    given = parse([])
    assert given.pop("model") == "none"
    assert Every(**given) == Every()


def test_every_kind_of_field_is_parsed() -> None:
    given = parse("m --word b --count 3 --share 0.25 --name x --key k --key l --two-words".split())
    assert given == {"model": "m", "word": "b", "count": 3, "share": 0.25, "name": "x", "key": ("k", "l"), "two_words": True}


@pytest.mark.parametrize("arguments", [["--count", "many"], ["--share", "half"], ["--unknown", "1"], ["--count"]])
def test_what_is_no_value_of_the_field_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2


def test_a_setting_is_described_for_people() -> None:
    described = {s.name: (s.flag, s.value, s.repeated) for s in settings_of(Every)}
    assert described == {
        "word": ("--word", "a|b", False),
        "count": ("--count", "N", False),
        "share": ("--share", "N", False),
        "name": ("--name", "TEXT", False),
        "key": ("--key", "K", True),
        "two_words": ("--two-words", "", False),
    }


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig, PlanConfig])
def test_every_field_of_the_real_configs_has_help(config: type[Any]) -> None:
    for each in settings_of(config):
        assert each.help.endswith("."), each.name
        assert each.kind in (bool, int, float, str), each.name
        assert getattr(from_settings(config, {}), each.name) == each.default
