"""`serfer verify`: a plan's answers against the unsplit network's."""

from __future__ import annotations

from pathlib import Path

import typer

from serfer.cli.shared.display import print_table
from serfer.cli.shared.options import opened, print_json, status_line
from serfer.cli.shared.plan_commands import VerifyCommand
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


def verify(options: VerifyCommand, _context: typer.Context) -> None:
    directory, images = options.directory, [Path(name) for name in (*options.images, *options.more)]
    count = options.random if options.random is not None else (0 if images else 2)
    if not images and not count:
        raise UsageError("nothing to compare on: give --images or --random")
    load_plan(directory)  # a network's file is refused: it is what a plan is compared with
    with opened(directory, options, workers_of(options.workers, options.stack)) as pipeline, status_line() as progress:
        labelled = read_labelled(options.validation, pipeline.plan) if options.validation else None
        verification = compare(pipeline, directory, images, count, progress)
        accuracies = measure_accuracy(pipeline, directory, labelled, progress) if labelled else None
    if options.as_json:
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
    lossy = any(row.loss for row in verification.rows)
    rows = [
        (
            *(row.input, f"{row.split.error:.1e}", _same(row.split), "yes" if row.exact else "NO"),
            *((f"{row.loss.error:.1e}", _same(row.loss)) if row.loss else ()),
        )
        for row in verification.rows[:_MAX_ROWS]
    ]
    heads = ["input", "error / range", "first class", "exact"]
    print_table([*heads, *(["loss / range", "as given"] if lossy else [])], rows)
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
