"""A command line made of a dataclass: its fields are options, and what a line does not say, keys and settings say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_origin

import typer

from serfer.cli.shared.terminal import ORIGINS
from serfer.core.errors import UsageError
from serfer.core.options import Option, Options, flag_of, is_on_line, options_of, types_of, value_of

if TYPE_CHECKING:
    from serfer.settings import Given, Settings

_GIVEN: Final = "serfer.given"  # of a context's meta, as the next
_SETTINGS: Final = "serfer.settings"
_SET: Final = "set_keys"
_SET_HELP = "A key of the command, or a setting, for this run (docs/reference/settings.md); may be repeated."
_SIMPLE = (bool, int, float, Path)


def make_command(name: str, kind: type[Options], place: str) -> typer.Typer:
    """Return a command whose options are the fields of a class, and which runs the function at `place` with them.

    The function is imported when the command runs, so that its help shows at once.
    """
    hints = types_of(kind)
    parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [
        Parameter(item.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for item, described in options_of(kind)
        if is_on_line(kind, item)
        for hint, default in [_parameter(item, described, hints[item.name])]
    ]
    keys = [item.name for item, _ in options_of(kind) if not is_on_line(kind, item)]
    more = f"{_SET_HELP} Keys: {', '.join(keys)}." if keys else _SET_HELP
    default: Any = typer.Option(None, "--set", metavar="KEY=VALUE", help=more)
    parameters.append(Parameter(_SET, Parameter.KEYWORD_ONLY, default=default, annotation=list[str] | None))

    def command(context: typer.Context, **given: object) -> None:
        module, _, function = place.partition(":")
        options = read_options(kind, context, given)
        getattr(import_module(module), function)(options, context)

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = cleandoc(kind.__doc__ or "")
    command.options = kind  # type: ignore[attr-defined]  # for the reference
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(name=name)(command)
    return made


def _parameter(item: Field[Any], described: Option, of: Any) -> tuple[Any, Any]:  # noqa: ANN401 - a type
    hint, required = _line_type(of, described), item.default is MISSING
    meaning = f"{described.help} [SERFER_{described.setting.upper()}]" if described.setting else described.help
    how: dict[str, Any] = {"help": meaning, "metavar": described.metavar}
    if hint in (int, float):
        how |= {"min": described.least, "max": described.most}
    if described.is_argument:
        return (hint, typer.Argument(..., **how)) if required else (hint | None, typer.Argument(None, **how))
    flags = [flag_of(item, described)]
    if required:
        return hint, typer.Option(..., *flags, **how)
    if hint is bool:
        flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"] if item.default is True else flags
        return bool, typer.Option(item.default, *flags, help=meaning, show_default=False)
    default = None if described.setting or item.default in (None, (), "") else hint(item.default)
    return hint | None, typer.Option(default, *flags, show_default=described.shown or default is not None, **how)


def _line_type(hint: Any, described: Option) -> Any:  # noqa: ANN401 - a type
    """Return a field's type on the command line; what typer does not know is a text that `value_of` reads."""
    if described.read is None and get_origin(hint) is tuple:
        return list[str]
    simple = (kind for kind in _SIMPLE if described.read is None and hint in (kind, kind | None))
    return next(simple, str)


def read_options(kind: type[Options], context: typer.Context, line: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of the class
    """Return a command's options: those of its line win over `--set`, variables, and its table of the file."""
    from serfer.settings import Given  # noqa: PLC0415 - help needs no settings

    described = {item.name: (item, option) for item, option in options_of(kind)}
    said = dict(_keys(kind, described, line[_SET] or (), context.meta.setdefault(_GIVEN, {})))
    said |= {name: (line[name], flag_of(*described[name])) for name in described if is_given(context, name)}
    values, origins = {}, context.meta.setdefault(ORIGINS, {})
    for name, (raw, origin) in said.items():
        item, option = described[name]
        values[name] = value_of(kind, item, raw, origin)
        if option.setting:
            context.meta[_GIVEN][option.setting] = Given(origin, values[name])
        if (flag := flag_of(item, option)) != origin:
            origins[flag] = f"from {origin}"
    for name, (item, option) in described.items():
        if name not in said and not is_on_line(kind, item):
            origins[flag_of(item, option)] = f"a key: --set {name}=VALUE"
        if option.setting and name not in values and not option.own_default:
            values[name] = getattr(_settings_of(kind, context), option.setting)
    return kind(**values)


def _keys(
    kind: type[Options], described: Mapping[str, object], given: Sequence[str], settings: dict[str, Given]
) -> Iterator[tuple[str, tuple[Any, str]]]:
    from serfer.settings import Given, Settings, command_keys, is_secret, unknown_key  # noqa: PLC0415 - help needs no settings

    yield from command_keys(table_of(kind), described).items()
    for text in given:
        key, is_pair, value = text.partition("=")
        if not is_pair:
            raise UsageError(f"--set {text!r:.80}: give KEY=VALUE, such as {next(iter(described))}=...")
        if key in described:
            yield key, (value, f"--set {key}")
        elif key in Settings.model_fields and not is_secret(key):
            settings[key] = Given(f"--set {key}", value)
        else:
            raise UsageError(f"--set: {unknown_key(key, described)}")


def table_of(kind: type[Options]) -> str:
    return kind.command.replace(" ", "-")


def is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def given_settings(context: typer.Context) -> Mapping[str, Given]:
    given: Mapping[str, Given] = context.meta.get(_GIVEN, {})
    return given


def settings_of(context: typer.Context) -> Settings:
    """Return the settings with the options and keys of a command; raises UsageError and InputError."""
    return _settings_of(context.command.callback.options, context)  # type: ignore[union-attr]


def _settings_of(kind: type[Options], context: typer.Context) -> Settings:
    from serfer.settings import load_settings, origins  # noqa: PLC0415 - help needs no settings

    meta = context.meta
    if _SETTINGS not in meta:
        given = given_settings(context)
        meta[_SETTINGS] = loaded = load_settings(given)
        flags = {option.setting: flag_of(item, option) for item, option in options_of(kind) if option.setting}
        for name, _, origin in origins(loaded, given):
            if name not in given and origin != "default":
                meta[ORIGINS][flags.get(name, f"--{name.replace('_', '-')}")] = f"from {origin}"
    found: Settings = meta[_SETTINGS]
    return found
