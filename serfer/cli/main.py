"""The command line: its commands, each imported when it is asked for, and how the program ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from serfer import __version__
from serfer.cli.terminal import out, run

COMMANDS = {
    "classify": ("serfer.cli.classify:classify", "Classify images, each as one query through a split network."),
    "split": ("serfer.cli.plans:split", "Split a network into stages and tiles; write a plan directory."),
    "explain": ("serfer.cli.plans:explain", "Show a plan, what it costs, and what it competed with."),
    "verify": ("serfer.cli.plans:verify", "Compare a plan's answers with the unsplit network's."),
    "cost": ("serfer.cli.costs:cost", "Price a plan or a deployment on AWS, as predicted."),
    "up": ("serfer.cli.up:up", "Run the whole system here: store, functions, drivers, HTTP."),
    "serve": ("serfer.cli.serve:serve", "Run one driver: an HTTP service."),
    "instance": ("serfer.cli.instance:instance", "Run one GPU instance's server: the network whole, in batches."),
    "keys": ("serfer.cli.keys:app", "Add, list and remove API keys of the HTTP service."),
    "doctor": ("serfer.cli.deployed:doctor", "Say what this machine, or an AWS account, lacks."),
    "package": ("serfer.cli.package:package", "Write what SAM deploys to AWS."),
    "warm": ("serfer.cli.deployed:warm", "Start environments of deployed functions ahead of queries."),
    "sweep": ("serfer.cli.deployed:sweep", "Delete what has expired from a store in S3."),
    "profile": ("serfer.cli.costs:profile", "Measure operators here, for split --profiles."),
    "tune": ("serfer.cli.instance:tune", "Measure batch sizes for an instance."),
    "simulate": ("serfer.cli.simulate:app", "Run a load through routing policies, under a virtual clock."),
    "bench": ("bench.cli:bench_app", "Measure, on this machine, side by side in one run."),
}
"""Where each command is, and what it does in one line, in the order in which a new user needs them."""


class _LazyGroup(TyperGroup):
    """A group whose commands are imported when they run; to list them, their summaries are enough."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer's own type is private
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 - same
        if cmd_name not in COMMANDS:
            return None
        place, summary = COMMANDS[cmd_name]
        return _stub(cmd_name, summary) if self._listing else _imported(cmd_name, place)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - same
        with self._as_listed():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401 - same
        with self._as_listed():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _as_listed(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def _stub(name: str, summary: str) -> Any:  # noqa: ANN401 - same
    """Return a command that says what it does and does nothing."""
    one = typer.Typer(add_completion=False)
    one.command(name=name, short_help=summary)(lambda: None)
    return typer.main.get_command(one)


def _imported(name: str, place: str) -> Any:  # noqa: ANN401 - same
    """Return the command at `module:attribute`: a function, or an application with commands of its own."""
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        one = typer.Typer(add_completion=False, rich_markup_mode=None)
        one.command(name=name)(found)
        found = one
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Split convolutional networks into layers and tiles, and run them on AWS Lambda workers.",
    epilog="Exit codes: 1 a wrong or failed answer, 2 usage, 3 bad input, 4 something unavailable, 130 interrupted, "
    "143 terminated.",
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the flag
    if wanted:
        out.print(f"serfer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit with a code that says how it went."""
    run(app)
