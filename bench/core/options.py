"""Options that several benchmarks have, and the plan that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.options import plan_directory, status_lines
from serfer.core.costs.aws import STORES
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer.splitter.network.zoo import ZOO
from serfer_bench.core.plans import PLANS, Progress, bench_plan, tiled_plan
from serfer_bench.core.results import check_directory

DEFAULT_MODEL = "alexnet"


def _made(directory: Path | None) -> Path | None:
    if directory is not None:
        check_directory(directory)
    return directory


def _known(store: str) -> str:
    if store not in STORES:
        raise UsageError(f"store is {' or '.join(STORES)}, not {store!r}")
    return store


PlanOption = Annotated[Path | None, typer.Option("--plan", help="A plan directory, from serfer split.")]
ModelOption = Annotated[str | None, typer.Option("--model", help=f"A model of the zoo: {', '.join(ZOO)}.")]
StoreOption = Annotated[str | None, typer.Option("--store", help="A store's URL; by default a new Redis server.")]
ProfilesOption = Annotated[
    Path | None,
    typer.Option("--profiles", help="Operator profiles to predict by (serfer study profile). [SERFER_PROFILES_FILE]"),
]
NetworkOption = Annotated[
    str | None, typer.Option("--model", help="A fixed plan of bench/core/plans.py, or else a model of the zoo.")
]
FixedPlanOption = Annotated[str, typer.Option("--plan", help="A fixed plan (bench/core/plans.py).")]
FixedPlansOption = Annotated[
    list[str] | None,
    typer.Option("--plan", help=f"A fixed plan (bench/core/plans.py); may be repeated. By default {DEFAULT_MODEL}."),
]
PlansOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plan",
        metavar="[NAME=]DIR",
        help="A plan directory, from serfer split, or an .onnx file; may be repeated.",
    ),
]
ModelsOption = Annotated[list[str] | None, typer.Option("--model", help="A model of the zoo; may be repeated.")]
StoreKindOption = Annotated[
    str, typer.Option("--store", callback=_known, help="The kind of store of our plans: redis or s3.")
]
RowsOption = Annotated[
    Path | None,
    typer.Option("--out", callback=_made, help="A directory to write result.json and rows.csv to."),
]
QueriesOption = Annotated[
    Path | None,
    typer.Option("--out", callback=_made, help="A directory to write result.json, queries.csv and picture.png to."),
]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print tables in Markdown.")]
AtMostOption = Annotated[float | None, typer.Option(help="Exit with 1 if the ratio is higher than this.")]


def plan_of(model: str | None, plan: Path | None) -> Path:
    if plan is not None:
        return plan_directory(plan, model)
    with status_lines() as progress:
        return tiled_plan(model or DEFAULT_MODEL, load_settings(), progress)


def image_plan(directory: Path) -> Plan:
    plan = load_plan(directory)
    if plan.preprocess is None:
        raise UsageError("this plan does not say how an image becomes its input: split it with --preprocess")
    return plan


def network(model: str | None, plan: Path | None, settings: Settings, progress: Progress) -> Path:
    if plan is not None and model is not None:
        raise UsageError("give --plan or --model, not both")
    if plan is not None:
        return plan
    name = model or DEFAULT_MODEL
    return (bench_plan if name in PLANS else tiled_plan)(name, settings, progress)
