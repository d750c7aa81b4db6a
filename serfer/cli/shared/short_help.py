"""Help that fits on a screen: of a command with many options `--help` shows some, `--help-all` the rest, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperOption

SHOWN: Final = {
    "serve": "demo drivers host port store workers stack keys app size preprocess labels show-config json",
    "instance": "model plan host port device precision max-batch threads memory-mb registry keys json",
    "split": "out name size grids stages whole objective slo-ms preprocess labels output store account json",
    "cost": "log qps path instance slo-ms store cold-share memory burst per-month parameter compare json",
    "classify": "plan demo size preprocess labels store workers stack top-k compare trace json",
    "predict": "plan size preprocess output store workers stack top-k min-score draw coco json",
    "run": "out plan size preprocess format overwrite store workers stack compare keep json",
    "map-plan": "out size window channels reduce output preprocess labels memory store json",
    "map": "plan network preprocess reduce out bands no-data max-cost-usd dry-run overwrite restart workers stack json",
    "app register": "app validation name registry most latency-ms instance size preprocess labels output json",
    "deploy package": "out name region drivers store engine architecture snapstart provisioned-concurrency ping-every "
    "gpu-instance-type account json",
    "study simulate": "scenario policy scale seeds plan memory level max-usd-per-hour from until plot replay json",
}
"""The options that `--help` shows of each command that has too many, without their dashes; of others it shows all."""


def shorten(command: Any, path: str) -> None:  # noqa: ANN401 - typer's own type is private
    """Hide the options of a command that are not in `SHOWN`, and give it `--help-all`."""
    if path not in SHOWN:
        return
    shown = {f"--{name}" for name in SHOWN[path].split()}
    rest = [each for each in command.params if isinstance(each, TyperOption) and not shown & {*each.opts}]
    for option in rest:
        option.hidden = True

    def show_all(context: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
        if wanted and not context.resilient_parsing:
            for option in rest:
                option.hidden = False
            typer.echo(context.get_help())
            raise typer.Exit

    option = _flag("--help-all", f"Show {len(rest)} more options, too.", show_all)
    option.expose_value = False  # the command's function has no parameter for it
    command.params.append(option)


def _flag(name: str, meaning: str, callback: Callable[[typer.Context, bool], None]) -> Any:  # noqa: ANN401 - same
    """Return an eager flag, as typer makes it of a function's parameter."""
    one = typer.Typer(add_completion=False)

    # Not Annotated: hints are resolved without this function's variables.
    @one.command()
    def _(*, wanted: bool = typer.Option(False, name, is_eager=True, callback=callback, help=meaning)) -> None:  # noqa: FBT003
        pass

    return typer.main.get_command(one).params[0]
