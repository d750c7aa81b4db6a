"""`serfer describe`: what a plan says of its images and outputs, changed without another split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.display import plain
from serfer.cli.shared.options import JsonOption, print_json
from serfer.cli.shared.plan_summary import described
from serfer.cli.shared.terminal import err, out
from serfer.core.dataclass_codec import unstructure
from serfer.core.plan import Plan
from serfer.plan_directory import load_plan

_TAKEN_ON = (
    "changed; functions stay as they are, deployed ones too: start what serves the plan again, or deploy drivers"
)
_MEASURED = "losses of weights, head and 8 bits were measured on images as they were before: split or register it again"


def describe(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A plan directory, from serfer split.")],
    preprocess: Annotated[
        Path | None, typer.Option(help="A TOML file: how an image becomes the input (docs/how-to/preprocess.md).")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A text file with a class's name in each line.")] = None,
    output: Annotated[
        str | None,
        typer.Option(help="What the outputs are: scores, by softmax, sigmoid or none; or boxes, as in serfer split."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a plan's images become its input and what its outputs mean, or change it without another split."""
    if (preprocess, labels, output) == (None, None, None):
        _show(load_plan(directory), as_json=as_json)
        return
    from serfer.splitter.describe import describe as change  # noqa: PLC0415 - the command line starts fast

    plan = change(directory, preprocess=preprocess, labels=labels, activation=output)
    _show(plan, as_json=as_json)
    err.print(_TAKEN_ON, soft_wrap=True)
    if preprocess and (plan.changes or plan.quantised):
        err.print(_MEASURED, soft_wrap=True)


def _show(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json({"plan": plan.digest, **unstructure(plan.description)})
        return
    for line in described(plan):
        out.print(line, soft_wrap=True)
    if plan.detection:
        out.print(plain(plan.detection.in_words()), soft_wrap=True)
    else:
        out.print(f"scores: {plan.activation}" if plan.classifies else "the outputs are not scores of classes")
