"""The command line: its commands, each imported when it is asked for, and how the program ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from serfer import __version__
from serfer.cli.shared.lazy import INSTALLED, group, lazy_group
from serfer.cli.shared.terminal import out, run

# The modules of classes of options, which help imports, and of the commands of a registry.
_PLAN = "serfer.cli.shared.plan_commands:"
_ASK = "serfer.cli.shared.ask_commands:"
_SERVICE = "serfer.cli.shared.service_commands:"
_MAP = "serfer.cli.maps.options:"
_APP = "serfer.cli.registry.applications:"
COMMANDS = {
    "serve": ("serfer.cli.serve:serve", "Serve networks over HTTP.", _SERVICE + "ServeCommand"),
    "instance": ("serfer.cli.instance:instance", "Serve whole networks in batches.", _SERVICE + "InstanceCommand"),
    "keys": ("serfer.cli.keys:app", "Add, list and remove API keys of the HTTP service."),
    "split": ("serfer.cli.split:split", "Split a network into stages and tiles: a plan.", _PLAN + "SplitCommand"),
    "explain": ("serfer.cli.explain:explain", "Show a plan, its costs and its competitors.", _PLAN + "ExplainCommand"),
    "describe": ("serfer.cli.describe:describe", "Show or change how a plan treats images, its labels and scores."),
    "verify": ("serfer.cli.verify:verify", "Compare a plan with the unsplit network.", _PLAN + "VerifyCommand"),
    "cost": ("serfer.cli.costs:cost", "Price a plan or a deployment on AWS, as predicted.", _PLAN + "CostCommand"),
    "classify": ("serfer.cli.predict:predict", "Classify images, one query each.", _ASK + "ClassifyCommand"),
    "predict": ("serfer.cli.predict:predict", "Find classes or a detector's boxes in images.", _ASK + "PredictCommand"),
    "run": ("serfer.cli.run:run", "Write a network's outputs of images to files.", _ASK + "RunCommand"),
    "result": ("serfer.cli.result:app", "Show, get and delete results that were kept."),
    "map-plan": ("serfer.cli.maps.map_plan:map_plan", "Make a plan for huge images.", _MAP + "MapPlanCommand"),
    "map": ("serfer.cli.maps.map:map_images", "Run a network over a huge image, by windows.", _MAP + "MapCommand"),
    "doctor": ("serfer.cli.deployed:doctor", "Check what this machine, or an AWS account, lacks."),
    "app": ("serfer.cli.main:app_group", "Applications: register variants of networks, and release them."),
    "deploy": ("serfer.cli.main:deploy_group", "AWS: package a plan, deploy it, go back, delete it."),
    "study": (INSTALLED, "Simulate loads and policies; measure this machine for them."),
    "bench": (INSTALLED, "Measure, on this machine, side by side in one run."),
}
PANELS = {
    "Serve": ("serve", "instance", "keys"),
    "Split": ("split", "explain", "describe", "verify", "cost"),
    "Ask": ("classify", "predict", "run", "result"),
    "Map": ("map-plan", "map"),
    "Check": ("doctor",),
    "Groups": ("app", "deploy", "study", "bench"),
}
"""The commands of each section of `serfer --help`."""
app_group = group(
    "Register variants of networks as applications, release them, and look after their registry.",
    {
        "register": (
            "serfer.cli.registry.register:register",
            "Make, measure and register variants.",
            "serfer.cli.registry.options:RegisterCommand",
        ),
        "list": (_APP + "variants", "Show variants: accuracy, latency, dollars."),
        "promote": (_APP + "promote", "Let network versions answer an application's queries."),
        "canary": (_APP + "canary", "Let a network version answer a share of the queries."),
        "rollback": (_APP + "rollback", "Take the canary back, or return to the release before."),
        "retire": (_APP + "retire", "End a network version: it answers no more."),
        "fetch": (_APP + "fetch", "Write a variant's plan directory."),
        "history": (_APP + "history", "Show the kept versions of an application's record."),
        "restore": (_APP + "restore", "Put an earlier version of a record in place of the last."),
        "delete": (_APP + "delete", "Delete an application."),
        "gc": (_APP + "gc", "Delete files that no application refers to."),
    },
)
deploy_group = group(
    "Deploy a plan to AWS by SAM CLI, and look after what is deployed.",
    {
        "package": ("serfer.cli.package:package", "Write what SAM deploys to AWS.", _PLAN + "PackageCommand"),
        "check": ("serfer.cli.deploy:check", "Refuse an update that would delete what a stack serves."),
        "apply": ("serfer.cli.deploy:apply", "Check, build and deploy what was packaged."),
        "smoke": ("serfer.cli.deploy:smoke", "Deploy a stack of its own, query it, measure AWS, delete it."),
        "rollback": ("serfer.cli.deploy:rollback", "Let a stack's drivers serve the plan before."),
        "destroy": ("serfer.cli.deploy:destroy", "Delete a stack and all that it holds."),
        "warm": ("serfer.cli.deployed:warm", "Start environments ahead of queries.", _PLAN + "WarmCommand"),
        "sweep": ("serfer.cli.deployed:sweep", "Delete what has expired from a store in S3."),
    },
)

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


def _config(file: Path | None) -> None:
    if file is not None:
        os.environ["SERFER_CONFIG"] = str(file)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", callback=_config, help="A file of settings, instead of serfer.toml."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Print an error's frames, too; may stand anywhere.")] = False,
) -> None:
    pass


def main(*, check: bool = True) -> None:
    run(app, check=check)
