"""A command line made of a dataclass: its fields are options, and what a line does not say, keys and settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_origin, get_type_hints

import typer

from serfer.cli.shared.terminal import ORIGINS
from serfer.core.errors import UsageError
from serfer.core.options import Option, Options, flag_of, is_list, is_on_line, options_of, value_of

if TYPE_CHECKING:
    from serfer.settings import Given, Settings

_GIVEN: Final = "serfer.given"  # of a context's meta, as the next
_SETTINGS: Final = "serfer.settings"
_SET: Final = "set_keys"
_SET_HELP = "A key of the command, or a setting, for this run (docs/reference/settings.md); may be repeated."
_SIMPLE = (bool, int, float, Path)


def make_command(kind: type[Options], place: str) -> Callable[..., None]:
    """Return a command whose options are the fields of a class, and which runs the function at `place` with them.

    The function is imported when the command runs, so that its help shows at once.
    """
    hints = get_type_hints(kind)
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
        from serfer.settings import given_settings as in_command  # noqa: PLC0415 - help needs no settings

        with in_command(given_settings(context)):
            getattr(import_module(module), function)(options, context)

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = cleandoc(kind.__doc__ or "")
    command.options = kind  # type: ignore[attr-defined]  # for the reference
    return command


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
    if described.read is None and get_origin(hint) is tuple:
        return list[str]
    simple = (kind for kind in _SIMPLE if described.read is None and hint in (kind, kind | None))
    return next(simple, str)


def read_options(kind: type[Options], context: typer.Context, line: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of the class
    """Return a command's options: those of its line win over `--set`, variables, and its table of the file."""
    from serfer.settings import Given, command_keys, load_settings, origins  # noqa: PLC0415 - help needs no settings

    described = {item.name: (item, option) for item, option in options_of(kind)}
    keys = command_keys(kind)
    given, said = context.meta.setdefault(_GIVEN, {}), context.meta.setdefault(ORIGINS, {})
    named = _named_by_set(kind, line[_SET] or (), given)
    keys = {name: key for name, key in keys.items() if described[name][1].setting not in given} | named
    keys |= {name: (line[name], flag_of(*described[name]), False) for name in described if is_given(context, name)}
    values = {}
    for name, (raw, origin, in_file) in keys.items():
        item, option = described[name]
        values[name] = value_of(kind, item, raw, origin)
        if option.setting:
            given[option.setting] = Given(origin, values[name], in_file)
        if (flag := flag_of(item, option)) != origin:
            said[flag] = f"from {origin}"
    settings = context.meta[_SETTINGS] = load_settings(given)
    flags = {option.setting: flag_of(item, option) for item, option in described.values() if option.setting}
    for name, _, origin in origins(settings, given):
        if name not in given and origin != "default":
            said[flags.get(name, f"--{name.replace('_', '-')}")] = f"from {origin}"
    for name, (item, option) in described.items():
        if option.setting and option.setting not in settings.model_fields_set and values.pop(name, None) is not None:
            said.pop(flag_of(item, option), None)  # a stack in a variable, say, takes the place of a table's store
        if option.setting and not option.own_default:
            values[name] = getattr(settings, option.setting)
        if name not in keys and not is_on_line(kind, item):
            said.setdefault(flag_of(item, option), f"a key: --set {name}=VALUE")
    return kind(**values)


def _named_by_set(
    kind: type[Options], texts: Sequence[str], settings: dict[str, Given]
) -> dict[str, tuple[str, str, bool]]:
    """Return the command's keys that `--set` has, each with its origin, and add the settings; lists grow."""
    from serfer.settings import Given, Settings, is_secret, unknown_key  # noqa: PLC0415 - help needs no settings

    found: dict[str, tuple[str, str, bool]] = {}
    hints = {item.name: get_type_hints(kind)[item.name] for item, _ in options_of(kind)}
    for text in texts:
        key, is_pair, value = text.partition("=")
        origin = f"--set {key}"
        if not is_pair:
            raise UsageError(
                f"--set {text!r:.80}: give KEY=VALUE, such as {key if key in hints else next(iter(hints))}=..."
            )
        if key in hints:
            before = f"{found[key][0]}," if key in found and is_list(hints[key]) else ""
            found[key] = f"{before}{value}", origin, False
        elif key not in Settings.model_fields:
            raise UsageError(f"--set: {unknown_key(kind, key)}")
        elif is_secret(key):
            raise UsageError(f"{origin}: a secret belongs in the variable SERFER_{key.upper()} alone")
        else:
            is_longer = key in settings and is_list(Settings.model_fields[key].annotation)
            settings[key] = Given(origin, f"{settings[key].value},{value}" if is_longer else value)
    return found


def is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def given_settings(context: typer.Context) -> Mapping[str, Given]:
    given: Mapping[str, Given] = context.meta.get(_GIVEN, {})
    return given


def settings_of(context: typer.Context) -> Settings:
    found: Settings = context.meta[_SETTINGS]
    return found
