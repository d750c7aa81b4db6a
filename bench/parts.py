"""A benchmark of several parts: `serfer bench overhead elapsed`, `serfer study paper infaas --figure 5`."""

from __future__ import annotations

from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from serfer.cli.shared.lazy import Commands, group, lazy_group
from serfer.core.errors import UsageError

_OPTIONS = ("--figure", "--table", "--section")
_HELP = ("--help", "-h")


def commands(summary: str, places: Commands) -> typer.Typer:
    """Return a group of commands whose places are below `serfer_bench`."""
    return group(summary, {name: (f"serfer_bench.{place}", *rest) for name, (place, *rest) in places.items()})


def parts(summary: str, places: Commands, *, default: bool = True) -> typer.Typer:
    """Return the benchmark with these parts; by `default` one without its part's name runs the first of them."""
    first = next(iter(places)) if default else ""
    listed = {
        name: (f"serfer_bench.{place}", f"{what} (default)" if name == first else what)
        for name, (place, what) in places.items()
    }
    group = type("PartsGroup", (_Named, lazy_group(listed, {"Parts": [*places]})), {"default": first})
    app = typer.Typer(cls=group, no_args_is_help=not default, add_completion=False, rich_markup_mode=None, help=summary)
    app.callback()(_nothing)
    return app


class _Named(TyperGroup):
    default: ClassVar[str] = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type is private
        return super().parse_args(ctx, args if ctx.resilient_parsing else self.named(args, self.list_commands(ctx)))

    def named(self, args: list[str], names: list[str]) -> list[str]:
        """Return the arguments with the part's name as one word in front; raises UsageError for an unknown one."""
        first, *rest = args or [""]
        option, equals, number = first.partition("=")
        if option in _OPTIONS:
            if not equals:
                number, *rest = rest or [""]
            if (name := f"{option} {number}") not in names:
                raise UsageError(f"there are {', '.join(names)}, not {name!r:.40}")
            return ["--", name, *rest]  # a name that begins with a dash is not an option
        if self.default and (not first or (first.startswith("-") and first not in _HELP)):
            return ["--", self.default, *args]
        return args


def _nothing() -> None:
    pass
