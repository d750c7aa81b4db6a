"""Options that stand for a setting: where they are not given, SERFER_* variables and serfer.toml say their value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from serfer.cli.shared.terminal import ORIGINS

if TYPE_CHECKING:
    from serfer.settings import Given, Settings

SET_SETTINGS: Final = "serfer.set_settings"
"""The key of a context's meta under which settings stand that `--set` gave."""
_SETTINGS: Final = "serfer.settings"  # of a context's meta


@dataclass(frozen=True)
class _Setting:
    """The setting that an option stands for, and whether the command reads what is not given itself."""

    name: str

    def value(self, context: typer.Context, param: typer.CallbackParam, value: object) -> object:
        """Return the option's value: as it was given, or what the settings say."""
        if context.resilient_parsing or is_given(context, str(param.name)):
            return value
        return getattr(settings_of(context), self.name)

    def as_given(self, value: object) -> object:
        """Return the option's value, for a command to which an option says more than a setting."""
        return value


def setting(name: str, *flags: str, help: str, as_given: bool = False, **options: Any) -> Any:  # noqa: A002, ANN401 - typer's
    """Return `typer.Option` of an option that stands for a setting of this `name`.

    A command gets its value from the command line, the variable or the file. With `as_given` it gets it from the
    command line alone, and takes the rest from the settings itself.
    """
    stands_for = _Setting(name)
    return typer.Option(
        *flags,
        help=f"{help} [SERFER_{name.upper()}]",
        callback=stands_for.as_given if as_given else stands_for.value,
        **options,
    )


def setting_of(param: Any) -> str | None:  # noqa: ANN401 - typer's own type is private
    """Return the name of the setting that a command's option stands for, None of one that stands for none."""
    stands_for = getattr(getattr(param.callback, "__wrapped__", None), "__self__", None)
    return stands_for.name if isinstance(stands_for, _Setting) else None


def is_given(context: typer.Context, option: str) -> bool:
    """Return whether an option of a command was given on its line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def given_settings(context: typer.Context) -> Mapping[str, Given]:
    """Return the options of a command's line that stand for settings, by setting."""
    from serfer.settings import Given  # noqa: PLC0415 - help needs no settings

    given: dict[str, Given] = context.meta.get(SET_SETTINGS, {})
    return given | {
        name: Given(param.opts[0], context.params[param.name])
        for param in context.command.params
        if (name := setting_of(param)) and param.name in context.params and is_given(context, param.name)
    }


def settings_of(context: typer.Context) -> Settings:
    """Return the settings with the options of a command's line; raises UsageError and InputError.

    Options that were given are processed before those that were not, so the first of these finds all of them.
    """
    from serfer.settings import load_settings, origins  # noqa: PLC0415 - help needs no settings

    meta = context.meta
    if _SETTINGS not in meta:
        given = given_settings(context)
        meta[_SETTINGS] = loaded = load_settings(given)
        known = {name: origin for name, _, origin in origins(loaded, given) if origin != "default"}
        options = {name: param.opts[0] for param in context.command.params if (name := setting_of(param))}
        own = {options.get(name, f"--{name.replace('_', '-')}"): known[name] for name in known if name not in given}
        meta[ORIGINS] = own | meta.get(ORIGINS, {})
    found: Settings = meta[_SETTINGS]
    return found
