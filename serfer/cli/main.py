"""The command line: its commands, each imported when it is asked for, and how the program ends."""

from __future__ import annotations

from typing import Annotated

import typer

from serfer import __version__
from serfer.cli.shared.lazy import INSTALLED, lazy_group
from serfer.cli.shared.terminal import out, run

COMMANDS = {
    "classify": ("serfer.cli.classify:classify", "Classify images, each as one query through a split network."),
    "predict": ("serfer.cli.predict:predict", "Find classes, or a detector's boxes, in images."),
    "run": ("serfer.cli.run:run", "Run images through a split network; write its outputs to files."),
    "result": ("serfer.cli.result:app", "Show, get and delete results that were kept."),
    "split": ("serfer.cli.split:split", "Split a network into stages and tiles; write a plan directory."),
    "explain": ("serfer.cli.explain:explain", "Show a plan, what it costs, and what it competed with."),
    "describe": ("serfer.cli.describe:describe", "Show or change how a plan treats images, its labels and scores."),
    "verify": ("serfer.cli.verify:verify", "Compare a plan's answers with the unsplit network's."),
    "cost": ("serfer.cli.costs:cost", "Price a plan or a deployment on AWS, as predicted."),
    "map-plan": ("serfer.cli.maps.map_plan:map_plan", "Make a plan for images that no function holds."),
    "map": ("serfer.cli.maps.map:map_images", "Run a network over an image that no memory holds, by windows."),
    "register": ("serfer.cli.registry.register:register", "Make, measure and register variants of a network."),
    "variants": (
        "serfer.cli.registry.variants:variants",
        "Show variants: accuracy, latency, dollars.",
    ),
    "promote": ("serfer.cli.registry.releases:promote", "Let network versions answer an application's queries."),
    "canary": ("serfer.cli.registry.releases:canary", "Let a network version answer a share of the queries."),
    "rollback": ("serfer.cli.registry.releases:rollback", "Take the canary back, or return to the release before."),
    "retire": ("serfer.cli.registry.releases:retire", "End a network version: it answers no more."),
    "registry": ("serfer.cli.registry.upkeep:app", "Look after the registry: its history and its garbage."),
    "up": ("serfer.cli.up:up", "Run the whole system here: store, functions, drivers, HTTP."),
    "serve": ("serfer.cli.serve:serve", "Run one driver: an HTTP service."),
    "instance": ("serfer.cli.instance:instance", "Run one GPU instance's server: the network whole, in batches."),
    "keys": ("serfer.cli.keys:app", "Add, list and remove API keys of the HTTP service."),
    "doctor": ("serfer.cli.deployed:doctor", "Check what this machine, or an AWS account, lacks."),
    "package": ("serfer.cli.package:package", "Write what SAM deploys to AWS."),
    "warm": ("serfer.cli.deployed:warm", "Start environments of deployed functions ahead of queries."),
    "sweep": ("serfer.cli.deployed:sweep", "Delete what has expired from a store in S3."),
    "profile": ("serfer.cli.costs:profile", "Measure operators here, for split --profiles."),
    "tune": ("serfer.cli.instance:tune", "Measure batch sizes for an instance."),
    "simulate": ("serfer.cli.simulate:app", "Run a load through routing policies, under a virtual clock."),
    "train-forecaster": ("serfer.cli.training.train_forecaster:train_forecaster", "Train MArk's forecaster on a load."),
    "bench": (INSTALLED, "Measure, on this machine, side by side in one run."),
}
PANELS = {
    "Try": ("classify", "predict", "run", "result", "split", "explain", "describe", "verify", "cost"),
    "Map": ("map-plan", "map"),
    "Applications": ("register", "variants", "promote", "canary", "rollback", "retire", "registry"),
    "Run": ("up", "serve", "instance", "keys", "doctor"),
    "Deploy": ("package", "warm", "sweep"),
    "Study": ("profile", "tune", "simulate", "train-forecaster", "bench"),
}
"""The commands of each section of `serfer --help`."""

app = typer.Typer(
    cls=lazy_group(COMMANDS, PANELS),
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Split convolutional networks into layers and tiles, and run them on AWS Lambda workers.",
    epilog="Exit codes: 1 a wrong or failed answer, 2 usage, 3 bad input, 4 something unavailable, 70 a bug in "
    "SerFer, 130 interrupted, 143 terminated.",
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
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the frames of an error, too; may stand anywhere.")
    ] = False,
) -> None:
    pass


def main(*, warn: bool = True) -> None:
    """Run the command line and exit with a code that says how it went; `warn` of settings that are none."""
    run(app, warn=warn)
