"""Settings as command-line options: one option for each documented field of a config class."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a config class, as a user meets it.

    kind: bool, int, float or str, the type of one value. repeated: the field is a tuple and the option may be given several
    times. value: how the value is written, "N" or "auto|cpu|cuda", empty for a flag that takes none.
    """

    name: str
    kind: type[Any]
    repeated: bool
    default: Any
    help: str
    value: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def settings_of(config: type[Any], omit: Collection[str] = ()) -> Iterator[Setting]:
    """The settings of a config class whose fields were made by `headrace.config.setting`, in order, but for those in `omit`."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        if field.name in omit:
            continue
        kind, repeated = _kind(hints[field.name])
        value = "|".join(field.metadata["choices"]) or field.metadata["metavar"] or ("TEXT" if kind is str else "N")
        yield Setting(field.name, kind, repeated, field.default, field.metadata["help"], "" if kind is bool else value)


def _kind(hint: Any) -> tuple[type[Any], bool]:
    """(type of one value, is it a tuple) of int, int | None, tuple[str, ...] and the like."""
    if isinstance(hint, types.UnionType):
        (hint,) = (arm for arm in typing.get_args(hint) if arm is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return hint, False


def with_settings(*configs: type[Any], omit: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate command(..., *, name: Mapping, ...): its last len(configs) keyword-only parameters become options.

    Each such parameter stands for one config class, and receives the settings given for it as a mapping. omit: fields that are
    no options of this command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(command, eval_str=True).parameters.values())
        own, groups = parameters[: -len(configs)], parameters[-len(configs) :]
        names = {group.name: [s.name for s in settings_of(config, omit)] for group, config in zip(groups, configs, strict=True)}

        def run(**values: Any) -> None:
            command(
                **{p.name: values[p.name] for p in own},
                **{group: {name: _plain(values[name]) for name in members} for group, members in names.items()},
            )

        options = [_option(s, config.__name__.removesuffix("Config")) for config in configs for s in settings_of(config, omit)]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
        run.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        return run

    return decorate


def _option(setting: Setting, panel: str) -> inspect.Parameter:
    kind: Any = list[setting.kind] if setting.repeated else setting.kind  # type: ignore[name-defined]
    default = list(setting.default) if setting.repeated else setting.default
    spelling = setting.flag if setting.kind is not bool else f"{setting.flag}/--no-{setting.flag[2:]}"
    option = typer.Option(
        spelling, help=setting.help, metavar=setting.value or None, rich_help_panel=panel,
        show_default=setting.default not in (None, ()),
    )
    hint = kind if default is not None else kind | None
    annotation: Any = Annotated[hint, option]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Settings = Mapping[str, Any]
