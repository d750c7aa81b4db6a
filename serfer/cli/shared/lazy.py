"""Groups whose commands are imported when they run; to list them, their summaries are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from serfer.cli.shared.schema import make_command
from serfer.extras import missing_extra

Commands = Mapping[str, tuple[str, ...]]
"""The place of each command, `module:attribute` or `INSTALLED`, what it does, and the place of its class of options."""
INSTALLED = ""
"""The place of a command that a distribution of its own brings, by the entry point group `serfer.commands`."""
Panels = Mapping[str, Sequence[str]]
"""The names of the commands in each section of the help."""


def lazy_group(commands: Commands, panels: Panels | None = None) -> type[TyperGroup]:
    return type("LazyGroup", (_LazyGroup,), {"places": commands, "panels": panels or {"Commands": [*commands]}})


def group(summary: str, commands: Commands) -> typer.Typer:
    app = typer.Typer(
        cls=lazy_group(commands), no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=summary
    )
    app.callback()(_nothing)
    return app


class _LazyGroup(TyperGroup):
    places: ClassVar[Commands] = {}
    panels: ClassVar[Panels] = {}
    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer's own type is private
        return [*self.places]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 - same
        if cmd_name not in self.places:
            return None
        place, summary, *options = self.places[cmd_name]
        if self._listing:
            return make_typer_command(cmd_name, _nothing, summary)
        if options:
            return make_typer_command(cmd_name, make_command(_attribute(options[0]), place))
        return make_typer_command(cmd_name, _installed(cmd_name) if place == INSTALLED else _attribute(place))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - same
        names: dict[str, Any] = dict.fromkeys(self.places)
        self.commands = names  # of which typer suggests one for a misspelt name
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - same
        width = max(map(len, self.places))
        for panel, names in self.panels.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), self.places[name][1]) for name in names])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401 - same
        self._listing = True  # from now on: the process ends with the completions
        return super().shell_complete(ctx, incomplete)


def _nothing() -> None:
    pass


def make_typer_command(name: str, target: Any, summary: str | None = None) -> Any:  # noqa: ANN401 - same
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=name, short_help=summary)(target)
        target = app
    command = typer.main.get_command(target)
    command.name = name
    return command


def _attribute(place: str) -> Any:  # noqa: ANN401 - same
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _installed(name: str) -> Any:  # noqa: ANN401 - a function, or an application
    from serfer.plug_ins import plugged_in  # noqa: PLC0415  `serfer --help` needs no metadata of all distributions

    entry = plugged_in("serfer.commands").get(name)
    if entry is None:
        raise missing_extra(name)
    return entry.load()
