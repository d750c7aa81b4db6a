"""`serfer verify`: a plan's answers against the unsplit network's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.display import columns, plain
from serfer.cli.shared.options import (
    EngineOption,
    JsonOption,
    ObjectStoreOption,
    PlanArgument,
    StackOption,
    StoreOption,
    VerifyWorkersOption,
    opened,
    print_json,
    status_line,
)
from serfer.cli.shared.terminal import out
from serfer.core.errors import UsageError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, Difference
from serfer.core.variants import Accuracy
from serfer.pipeline.labelled.accuracy import measure_accuracy
from serfer.pipeline.labelled.labels import read_labelled
from serfer.pipeline.verify import Verification
from serfer.pipeline.verify import verify as compare
from serfer.plan_directory import load_plan
from serfer.wiring.options import workers_of

_MAX_ROWS = 40


def verify(
    directory: PlanArgument,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[IMAGE]...", help="Images, or folders of them.", show_default=False)
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Option("--images", help="The same: one or several images or folders.")
    ] = None,
    random: Annotated[
        int | None, typer.Option(min=0, help="How many random inputs to compare on: 2, unless there are images.")
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            help="Labelled images, to report the accuracy on: a folder for each class, or a labels.csv (file,label) "
            "next to the images."
        ),
    ] = None,
    workers: VerifyWorkersOption = None,
    stack: StackOption = None,
    store: StoreOption = None,
    object_store: ObjectStoreOption = None,
    engine: EngineOption = "push",
    as_json: JsonOption = False,
) -> None:
    """Compare a plan with its unsplit model; exit code 1 if an answer differs.

    A plan that stores weights in fp16, or has another head, is compared with the network that it computes, and what it
    lost against the model as it was given is reported as well. On labelled images, so are the shares of right answers
    of the plan and of the model as it was given, with their 95% intervals (Wilson's).
    """
    images = [*(images or ()), *(more or ())]
    count = random if random is not None else (0 if images else 2)
    if not images and not count:
        raise UsageError("nothing to compare on: give --images or --random")
    load_plan(directory)  # a network's file is refused: it is what a plan is compared with
    workers = workers_of(workers, stack)
    with opened(directory, store, workers, engine, object_store, stack=stack) as pipeline, status_line() as progress:
        labelled = read_labelled(validation, pipeline.plan) if validation else None
        verification = compare(pipeline, directory, images, count, progress)
        accuracies = measure_accuracy(pipeline, directory, labelled, progress) if labelled else None
    if as_json:
        for row in verification.rows:
            print_json(row.as_dict())
        print_json(verification.summary())
        if accuracies:
            print_json(accuracies.as_dict())
    else:
        _print_verification(verification)
        if accuracies:
            out.print(_accuracy("the plan", accuracies.plan), _accuracy("as given", accuracies.given), sep="\n")
    if not verification.exact:
        raise WrongAnswerError(
            f"the plan's answers differ from the unsplit model's by more than {TOLERANCE:g} of their range"
        )


def _print_verification(verification: Verification) -> None:
    """Print how far each answer is from the unsplit model's, and what all have in common."""
    lossy = any(row.loss for row in verification.rows)
    table = columns("input", "error / range", "first class", "exact", *(["loss / range", "as given"] if lossy else []))
    for row in verification.rows[:_MAX_ROWS]:
        cells = [f"{row.split.error:.1e}", _same(row.split), "yes" if row.exact else "NO"]
        if row.loss:
            cells += [f"{row.loss.error:.1e}", _same(row.loss)]
        table.add_row(plain(row.input), *cells)
    out.print(table)
    if len(verification.rows) > _MAX_ROWS:
        out.print(f"... and {len(verification.rows) - _MAX_ROWS:,} more")
    against = "the model as it was given" if lossy else "the unsplit model"
    out.print(
        f"{len(verification.rows):,} inputs: largest error {verification.error:.1e} of the logits' range; same first "
        f"class as {against} on {verification.agreement:.1%}"
    )


def _accuracy(what: str, accuracy: Accuracy) -> str:
    low, high = accuracy.interval
    return f"accuracy, {what}: {accuracy.share:.2%} of {accuracy.images:,} images, 95% within {low:.2%} to {high:.2%}"


def _same(delta: Difference) -> str:
    return "same" if delta.same_top else "OTHER"
