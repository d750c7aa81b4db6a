"""A command line made of a dataclass: its fields are options, and what a line does not say, keys and settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer

from serfer.cli.shared.setting_options import SET_SETTINGS, is_given, setting, settings_of
from serfer.cli.shared.terminal import ORIGINS
from serfer.core.errors import UsageError
from serfer.core.options import Option, Options, flag_of, is_on_line, options_of, types_of, value_of

_SET = "set_keys"
_SET_HELP = "A key of the command, or a setting, for this run (docs/reference/settings.md); may be repeated."


def make_command(name: str, kind: type[Options], place: str) -> typer.Typer:
    """Return a command whose options are the fields of a class, and which runs the function at `place` with them.

    The function is imported when the command runs, so that its help shows at once.
    """
    parameters = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [
        Parameter(item.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for item, described in options_of(kind)
        if is_on_line(kind, item)
        for hint, default in [_parameter(kind, item, described)]
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


def _parameter(kind: type[Options], item: Field[Any], described: Option) -> tuple[Any, Any]:
    """Return the type and the default, as typer has them, of an option."""
    hint = _line_type(types_of(kind)[item.name], described)
    required = item.default is MISSING
    bounds = {"min": described.least, "max": described.most} if hint in (int, float) else {}
    how: dict[str, Any] = {"help": described.help, "metavar": described.metavar, **bounds}
    if described.is_argument:
        return (hint, typer.Argument(..., **how)) if required else (hint | None, typer.Argument(None, **how))
    flags = [flag_of(item, described)]
    if hint is bool and item.default is True:
        flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
    if described.setting:
        stands_for = setting(described.setting, *flags, as_given=True, show_default=described.shown, **how)
        return Annotated[hint if hint is bool else hint | None, stands_for], None
    if required:
        return hint, typer.Option(..., *flags, **how)
    if hint is bool:
        return bool, typer.Option(item.default, *flags, help=described.help, show_default=False)
    default = None if item.default in (None, (), "") else hint(item.default)
    return hint | None, typer.Option(default, *flags, show_default=described.shown or default is not None, **how)


def _line_type(hint: Any, described: Option) -> Any:  # noqa: ANN401 - a type
    """Return a field's type on the command line; what typer does not know is a text that `value_of` reads."""
    text = str(hint)
    if text.startswith(("tuple[str", "tuple[pathlib.Path")):
        return list[str]
    for simple in (bool, int, float, Path):
        if described.read is None and hint in (simple, simple | None):
            return simple
    return str


def read_options(kind: type[Options], context: typer.Context, line: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of the class
    """Return a command's options: those of its line win over `--set`, variables, and its table of the file."""
    described = {item.name: (item, option) for item, option in options_of(kind)}
    values, origins = {}, context.meta.setdefault(ORIGINS, {})
    for name, (raw, origin) in _keys(kind, context, described, line[_SET] or ()).items():
        item, option = described[name]
        values[name] = value_of(kind, item, raw, origin)
        origins[flag_of(item, option)] = origin
    for name, (item, option) in described.items():
        flag = flag_of(item, option)
        if name in line and is_given(context, name):
            values[name] = value_of(kind, item, line[name], flag)
            origins.pop(flag, None)
        elif option.setting and name not in values and not option.own_default:
            values[name] = getattr(settings_of(context), option.setting)
    return kind(**values)


def _keys(
    kind: type[Options], context: typer.Context, described: Mapping[str, object], given: Sequence[str]
) -> dict[str, tuple[Any, str]]:
    """Return what `--set`, variables and the file say of a command's keys; settings among the first are kept aside."""
    from serfer.settings import Given, Settings, command_keys, is_secret, unknown_key  # noqa: PLC0415 - help needs no settings

    keys = command_keys(table_of(kind), described)
    settings = context.meta.setdefault(SET_SETTINGS, {})
    for text in given:
        key, is_pair, value = text.partition("=")
        if not is_pair:
            raise UsageError(f"--set {text!r:.80}: give KEY=VALUE, such as {next(iter(described))}=...")
        if key in described:
            keys[key] = value, f"--set {key}"
        elif key in Settings.model_fields and not is_secret(key):
            settings[key] = Given(f"--set {key}", value)
        else:
            raise UsageError(f"--set: {unknown_key(key, described)}")
    return keys


def table_of(kind: type[Options]) -> str:
    """Return the name of a command's table in the file."""
    return kind.command.replace(" ", "-")
