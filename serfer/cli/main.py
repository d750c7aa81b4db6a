"""The command line. It parses, calls and prints; what it prints comes from `serfer.cli.display`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from typer.core import TyperGroup

from bench.cli import bench_app
from serfer import __version__
from serfer.cli import display
from serfer.cli.instance import instance, tune
from serfer.cli.keys import app as keys_app
from serfer.cli.options import (
    DriverOption,
    JsonOption,
    ModelOption,
    ObjectStoreOption,
    PlanOption,
    ProfilesOption,
    StackOption,
    StoreOption,
    VerifyWorkersOption,
    WorkersOption,
    opened,
    plan_directory,
    print_json,
    status_line,
)
from serfer.cli.package import package
from serfer.cli.serve import serve
from serfer.cli.simulate import HELP as SIMULATE_HELP
from serfer.cli.simulate import simulate
from serfer.cli.terminal import complain, err, out, run
from serfer.cli.up import up
from serfer.core.errors import SerferError, UnavailableError, UsageError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, difference
from serfer.core.structure import unstructure
from serfer.settings import load_settings
from serfer.wiring.options import workers_of
from splitter.network.zoo import ZOO

if TYPE_CHECKING:
    from serfer.core.plan import Plan
    from serfer.doctor.machine import Check
    from serfer.pipeline.trace import TracedQuery

_SUMMARIES = {
    "classify": "Classify images, each as one query through a split network.",
    "split": "Split a network into stages and tiles; write a plan directory.",
    "explain": "Show a plan, what it costs, and what it competed with.",
    "verify": "Compare a plan's answers with the unsplit network's.",
    "cost": "Price a plan or a deployment on AWS, as predicted.",
    "up": "Run the whole system here: store, functions, drivers, HTTP.",
    "serve": "Run one driver: an HTTP service.",
    "instance": "Run one GPU instance's server: the network whole, in batches.",
    "keys": "Add, list and remove API keys of the HTTP service.",
    "doctor": "Say what this machine, or an AWS account, lacks.",
    "package": "Write what SAM deploys to AWS.",
    "warm": "Start environments of deployed functions ahead of queries.",
    "sweep": "Delete what has expired from a store in S3.",
    "profile": "Measure operators here, for split --profiles.",
    "tune": "Measure batch sizes for an instance.",
    "simulate": "Run a load through routing policies, under a virtual clock.",
    "bench": "Measure, on this machine, side by side in one run.",
}
"""What each command does in one line, in the order in which a new user needs them."""


class _Commands(TyperGroup):
    """The commands in the order of their summaries."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own type is private
        known = super().list_commands(ctx)
        return [*(name for name in _SUMMARIES if name in known), *(name for name in known if name not in _SUMMARIES)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - same
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.short_help = _SUMMARIES.get(cmd_name, command.short_help)
        return command


app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Split convolutional networks into layers and tiles, and run them on AWS Lambda workers.",
    epilog="Exit codes: 1 a wrong or failed answer, 2 usage, 3 bad input, 4 something unavailable, 130 interrupted, "
    "143 terminated.",
)
app.add_typer(bench_app, name="bench")
app.add_typer(keys_app, name="keys")
app.command()(package)
app.command()(serve)
app.command(help=SIMULATE_HELP)(simulate)
app.command()(instance)
app.command()(tune)
app.command()(up)


PlanArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A plan directory, from serfer split.")]

_QUICK_NETWORKS, _QUICK_ROUNDS = (("squeezenet", 224), ("mobilenet-v2", 224)), 2
_RGB = 3  # channels, unless said otherwise


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


@app.command()
def classify(
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="Image files; - reads one from standard input.")
    ],
    model: ModelOption = None,
    plan: PlanOption = None,
    store: StoreOption = None,
    object_store: ObjectStoreOption = None,
    workers: WorkersOption = None,
    stack: StackOption = None,
    driver: DriverOption = "push",
    deadline_ms: Annotated[int, typer.Option(min=1, max=86_340_000, help="Give up on an image then.")] = 120_000,
    top_k: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 5,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run the model as it was given, unsplit, and print the difference.")
    ] = False,
    cache_s: Annotated[
        float, typer.Option("--cache-s", help="Keep answers in the store for so many seconds; 0: keep none.")
    ] = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write where time went, for chrome://tracing and ui.perfetto.dev."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Classify images, each as one query through a split network."""
    from serfer.pipeline.reference import original  # noqa: PLC0415 - same
    from serfer.pipeline.trace import TracedQuery, check_trace  # noqa: PLC0415 - the command line starts fast

    if images.count("-") > 1:
        raise UsageError("standard input can be read only once")
    if trace is not None:
        check_trace(trace)
    directory = plan_directory(plan, model, stack)
    failures, traced = [], []
    workers = workers_of(workers, stack, "local")
    with opened(directory, store, workers, driver, object_store, cache_s, stack) as pipeline:
        whole = original(pipeline.plan, directory) if compare else None
        for name in images:
            try:
                data = _standard_input() if name == "-" else Path(name)
                pipeline.classify([data], names=[name], top_k=top_k, deadline_s=deadline_ms / 1000)
                delta = difference(pipeline.last.logits, whole(pipeline.pixels([data]))) if whole else None
            except SerferError as error:
                complain(error)
                failures.append(error)
                if as_json:
                    print_json({"images": [{"name": name, "predictions": []}], "error": str(error)})
                continue
            if as_json:
                print_json(pipeline.last_report.as_dict())
            else:
                display.print_answer(out, pipeline.plan, pipeline.last_report, delta)
            if trace is not None:
                traced.append(TracedQuery.of(name, pipeline.last))
    if trace is not None and traced:
        _write_trace(trace, pipeline.plan, traced)
    if failures:
        raise typer.Exit(failures[0].exit_code)


def _write_trace(path: Path, plan: Plan, queries: Sequence[TracedQuery]) -> None:
    from serfer.pipeline.trace import write_trace  # noqa: PLC0415 - the command line starts fast

    write_trace(path, plan, queries)
    err.print(
        f"wrote {display.plain(str(path))}: open it in chrome://tracing or at https://ui.perfetto.dev", soft_wrap=True
    )


@app.command()
def split(
    model: Annotated[
        str,
        typer.Argument(
            help="An .onnx file; module.py:factory, a function without arguments that returns the nn.Module (the file "
            f"is imported and run, so it must be one that you trust); or a model of the zoo: {', '.join(ZOO)}."
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", help="The plan directory to write; a plan there is replaced.")],
    stages: Annotated[str, typer.Option(help="How many stages, or auto.")] = "auto",
    grids: Annotated[
        str,
        typer.Option(
            help="auto; one grid for every stage that can be spread like that; or one for each, as 2x2,2x2,col4,1. "
            "RxC: tiles of a map; colN: columns of a fully connected layer."
        ),
    ] = "auto",
    cuts: Annotated[str | None, typer.Option(help="Cut after these operators (see explain --operators).")] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="What to have least of, as predicted: latency, cost, balanced (their product), or work: "
            "multiply-accumulates over all tiles."
        ),
    ] = "balanced",
    slo_ms: Annotated[float | None, typer.Option(help="Milliseconds that a warm query may take, as predicted.")] = None,
    max_cost_usd: Annotated[
        float | None, typer.Option(help="Dollars that a warm query may cost, as predicted.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Storage of weights: fp32, fp16, or auto (fp16 where a stage would not fit).")
    ] = "auto",
    gap: Annotated[
        str,
        typer.Option(
            help="Global average pooling in place of a fully connected head: never, always, or auto (where the head "
            "does not fit even in fp16, and there are --calibration images to fit it to)."
        ),
    ] = "auto",
    calibration: Annotated[Path | None, typer.Option(help="A folder with a folder of images for each class.")] = None,
    size: Annotated[
        str | None, typer.Option(help="The input's HEIGHTxWIDTH; a zoo model or ONNX file may fix its own.")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(min=1, max=4096, help="The input's channels, with --size; 3 by default.")
    ] = None,
    preprocess: Annotated[
        Path | None, typer.Option(help="A TOML file that says how an image becomes the input (docs/preprocess.md).")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A text file with a class's name in each line.")] = None,
    output: Annotated[
        str | None, typer.Option(help="What turns the network's output into scores: softmax, sigmoid or none.")
    ] = None,
    memory: Annotated[
        str, typer.Option(help="MB of each function, several to choose from, or auto: 1 to 4 vCPUs or all there are.")
    ] = "auto",
    max_tiles: Annotated[int | None, typer.Option(help="Tasks that a stage may have at most.")] = None,
    store: Annotated[
        str, typer.Option(help="What predictions are for: redis, s3, valkey, or redis+s3, valkey+s3.")
    ] = "redis",
    profiles: ProfilesOption = None,
    safety: Annotated[
        float, typer.Option(help="A share to add to every predicted compute time; the INFless paper adds 0.1.")
    ] = 0.0,
    limit_mb: Annotated[
        int | None,
        typer.Option(help="MB that a function's package may have; AWS allows 250, workers on this machine any."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Split a model into stages and tiles, prove the parts equal to the whole, and write a plan directory."""
    settings = load_settings()
    measured = settings.profiles(profiles, _share("--safety", safety))
    from sam.quotas import memory_note  # noqa: PLC0415 - the command line starts fast
    from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE  # noqa: PLC0415 - same
    from serfer.wiring.local import dependency_bytes  # noqa: PLC0415 - same
    from splitter.network.description import read_labels, read_preprocess  # noqa: PLC0415 - same
    from splitter.split import split as split_model  # noqa: PLC0415 - imports onnx

    with status_line() as progress:
        plan = split_model(
            model,
            _example(size, channels),
            directory,
            grids=grids,
            stages=stages,
            cuts=_names_in(cuts),
            objective=objective,
            precision=precision,
            gap=gap,
            calibration=calibration,
            slo_ms=slo_ms,
            max_cost_usd=max_cost_usd,
            max_tiles=max_tiles,
            store=store,
            memory_mb=_memory_in(memory),
            limit_mb=limit_mb,
            dependency_bytes=max(DEPENDENCY_ALLOWANCE, dependency_bytes(settings, progress)),
            preprocess=read_preprocess(preprocess) if preprocess else None,
            labels=read_labels(labels) if labels else (),
            activation=output,
            facts=settings.facts(),
            profiles=measured,
            progress=progress,
        )
    _print_plan(plan, as_json)
    if plan.limit.package > settings.facts().functions.package_limit:
        complain(f"with --limit-mb {limit_mb}, more than AWS allows, this plan runs on this machine only")
    elif note := memory_note(plan, settings.facts()):
        complain(f"in AWS: {note}")


@app.command()
def explain(
    directory: PlanArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="With --pareto: draw it to this file: .png, .svg or .pdf.")
    ] = None,
    operators: Annotated[bool, typer.Option("--operators", help="List every operator, by stage.")] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Show latency against dollars: this plan, and what it competed with.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the network with its cuts, and tiles with their halos, to this file.")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="The image that tiles are drawn over, with --picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a plan: its stages, grids, halos, package sizes, what it lost, what it costs, and what it beat."""
    from serfer.core.plan import load_plan  # noqa: PLC0415 - the command line starts fast

    if image is not None and picture is None:
        raise UsageError("--image is what --picture draws over: give both")
    if file is not None and not pareto:
        raise UsageError("a FILE is what --pareto draws to: give both, or --picture FILE for the network")
    plan = load_plan(directory)
    if pareto:
        _show_pareto(plan, file, as_json)
    else:
        _show_plan(plan, as_json)
    if operators:
        display.print_operators(out, plan)
    if picture is not None:
        _draw(plan, directory, picture, image)


def _show_plan(plan: Plan, as_json: bool) -> None:  # noqa: FBT001 - a command's flag, passed on
    from serfer.pictures import text_picture  # noqa: PLC0415 - the command line starts fast

    _print_plan(plan, as_json)
    if not as_json:
        out.print("\n".join(map(display.plain, text_picture(plan).split("\n"))))


def _show_pareto(plan: Plan, file: Path | None, as_json: bool) -> None:  # noqa: FBT001 - same
    from serfer.pictures import choices, draw_pareto  # noqa: PLC0415 - the command line starts fast

    found = choices(plan)
    if as_json:
        for each in found:
            print_json({"number": each.number, **asdict(each.plan), "best": each.best})
    else:
        display.print_pareto(out, plan, found)
    if file is not None:
        draw_pareto(plan, file)
        err.print(f"wrote {display.plain(str(file))}", soft_wrap=True)


def _draw(plan: Plan, directory: Path, picture: Path, image: Path | None) -> None:
    from serfer.pictures import draw_plan, picture_pixels  # noqa: PLC0415 - only pictures need it

    pixels = picture_pixels(plan, image, load_settings().image_limits()) if image else None
    draw_plan(plan, directory, picture, pixels)
    err.print(f"wrote {display.plain(str(picture))}", soft_wrap=True)


@app.command()
def cost(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A plan directory, or a BUILD directory of serfer package.")
    ],
    burst: Annotated[int, typer.Option(min=1, max=10**12, help="How many queries come at once.")] = 1000,
    store: Annotated[
        str | None, typer.Option(help="redis, s3, valkey, redis+s3 or valkey+s3; by default the plan's own.")
    ] = None,
    cold_share: Annotated[
        float | None, typer.Option(help="The share of invocations that find no warm environment, 0 to 1.")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="MB of every function; by default each stage's own.")] = None,
    queries_a_month: Annotated[
        list[int] | None, typer.Option(help="With BUILD: the load of a month; may be given several times.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With BUILD: a parameter of its template, such as AlarmEmail=x."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="With BUILD: a table of all drivers, stores and engines, in Markdown.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Price a plan or a whole deployment on AWS, as predicted: queries, a burst, months (docs/cost.md)."""
    from sam.deployment import is_build  # noqa: PLC0415 - the command line starts fast

    share = None if cold_share is None else _share("--cold-share", cold_share, 1)
    if is_build(directory):
        if store is not None or memory is not None:
            raise UsageError(f"{directory} has its store and memory: package it with others, or give a plan directory")
        if compare:
            _compare_costs(directory, queries_a_month, as_json)
        else:
            _cost_of_build(directory, burst, share, queries_a_month, parameter, as_json)
        return
    if compare or queries_a_month or parameter:
        raise UsageError(f"--compare, --queries-a-month and --parameter want a BUILD directory, not {directory}")
    from serfer.core.costs.pricing import Circumstances, price  # noqa: PLC0415 - same
    from serfer.core.plan import load_plan  # noqa: PLC0415 - same

    found = price(load_plan(directory), load_settings().facts(), Circumstances(store, memory, share or 0.0, burst))
    if as_json:
        print_json(found.as_dict())
    else:
        display.print_prices(out, found)


def _cost_of_build(
    build: Path,
    burst: int,
    cold_share: float | None,
    loads: list[int] | None,
    parameters: list[str] | None,
    as_json: bool,  # noqa: FBT001 - a command's flag, passed on
) -> None:
    from sam.cost.build_cost import price_build  # noqa: PLC0415 - the command line starts fast

    pairs = [text.partition("=") for text in parameters or ()]
    if (wrong := next((name for name, sign, _ in pairs if not (name and sign)), None)) is not None:
        raise UsageError(f"--parameter is NAME=VALUE, not {wrong!r}")
    given = {name: value for name, _, value in pairs}
    facts = load_settings().facts()
    found = price_build(build, facts, burst=burst, loads=loads, cold_share=cold_share, parameters=given)
    if as_json:
        print_json(found.as_dict())
    else:
        display.print_bill(out, found)


def _compare_costs(build: Path, loads: list[int] | None, as_json: bool) -> None:  # noqa: FBT001 - same
    from sam.cost.bill import LOADS, markdown  # noqa: PLC0415 - same
    from sam.cost.build_cost import compare_build  # noqa: PLC0415 - the command line starts fast

    rows = compare_build(build, load_settings().facts(), loads)
    if as_json:
        for row in rows:
            print_json(asdict(row))
    else:
        print(markdown(rows, loads or LOADS))  # noqa: T201 - Markdown goes out as it is


@app.command()
def profile(
    file: Annotated[Path, typer.Option("--out", help="The JSON file to write.")] = Path("profiles.json"),
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: one to three minutes, less exact.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure on this machine what operators cost, for split --profiles: three to five minutes on a quiet machine."""
    from serfer.core.costs.operator_costs import dump_profiles  # noqa: PLC0415 - the command line starts fast
    from serfer.files import check_place, write_whole  # noqa: PLC0415 - same

    check_place(file)
    from splitter.profiling.profile import measure  # noqa: PLC0415 - imports onnx and scikit-learn

    with status_line() as progress:
        found = measure(progress, _QUICK_NETWORKS, _QUICK_ROUNDS) if quick else measure(progress)
    write_whole(file, dump_profiles(found).encode())
    if as_json:
        print_json(json.loads(dump_profiles(found)))
    else:
        display.print_profiles(out, found)
    err.print(
        f"wrote {display.plain(str(file))}: give it to split --profiles, or set SERFER_PROFILES_FILE to it",
        soft_wrap=True,
    )


@app.command()
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
    workers: VerifyWorkersOption = None,
    stack: StackOption = None,
    store: StoreOption = None,
    object_store: ObjectStoreOption = None,
    driver: DriverOption = "push",
    as_json: JsonOption = False,
) -> None:
    """Compare a plan with its unsplit model; exit code 1 if an answer differs.

    A plan that stores weights in fp16, or has another head, is compared with the network that it computes, and what it
    lost against the model as it was given is reported beside.
    """
    from serfer.pipeline.verify import verify as compare  # noqa: PLC0415 - imports ONNX Runtime

    images = [*(images or ()), *(more or ())]
    count = random if random is not None else (0 if images else 2)
    if not images and not count:
        raise UsageError("nothing to compare on: give --images or --random")
    workers = workers_of(workers, stack)
    with opened(directory, store, workers, driver, object_store, stack=stack) as pipeline, status_line() as progress:
        found = compare(pipeline, directory, images, count, progress)
    if as_json:
        for row in found.rows:
            print_json(row.as_dict())
        print_json(found.summary())
    else:
        display.print_verification(out, found)
    if not found.exact:
        raise WrongAnswerError(
            f"the plan's answers differ from the unsplit model's by more than {TOLERANCE:g} of their range"
        )


@app.command()
def warm(
    plan: PlanOption = None,
    model: ModelOption = None,
    stack: StackOption = None,
    store: StoreOption = None,
    queries: Annotated[int, typer.Option(min=1, max=1000, help="For how many queries at once.")] = 1,
    hold_s: Annotated[
        float,
        typer.Option(min=0.0, max=60.0, help="Seconds that each request keeps its environment, so that others start."),
    ] = 0.5,
    every_s: Annotated[
        float | None,
        typer.Option(min=1.0, max=86_400.0, help="Do it again and again, so many seconds apart, until interrupted."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Warm a plan's deployed functions up: start environments for so many queries at once, and build their sessions."""
    directory = plan_directory(plan, model, stack)
    with opened(directory, store, "aws", stack=stack) as pipeline:
        while True:
            with status_line() as progress:
                progress("warming up")
                found = pipeline.warm(queries, hold_s)
            if as_json:
                for function in found:
                    print_json(function.as_dict())
            else:
                display.print_warmth(out, found)
            if every_s is None:
                break
            time.sleep(every_s)
    if any(function.problem for function in found):
        raise UnavailableError("some requests failed: see the lines above")


@app.command()
def sweep(
    store: Annotated[str, typer.Option(help="The bucket and prefix: s3://BUCKET/PREFIX.")],
    rule: Annotated[
        bool, typer.Option("--rule", help="Also give the bucket a lifecycle rule that does this once a day.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what has expired from a store in S3, which knows no time to live: what drivers that died left behind."""
    from storage import open_store  # noqa: PLC0415 - the command line starts fast
    from storage.s3.store import S3Store  # noqa: PLC0415 - same

    with open_store(store) as opened_store, status_line() as progress:
        if not isinstance(opened_store, S3Store):
            raise UsageError("every other store lets go of what has expired by itself: give --store s3://BUCKET/PREFIX")
        progress("looking for what has expired")
        if rule:
            opened_store.ensure_lifecycle()
        deleted = opened_store.sweep()
    if as_json:
        print_json({"deleted": deleted, "rule": rule})
    else:
        out.print(f"deleted {deleted:,} expired objects" + ("; the bucket's own rule does so daily" if rule else ""))


@app.command()
def doctor(
    aws: Annotated[
        bool, typer.Option("--aws", help="Look at the AWS account, the region and SAM CLI; nothing is created.")
    ] = False,
    build: Annotated[
        Path | None, typer.Option(help="With --aws: what is to be deployed, a BUILD directory of serfer package.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="With --aws: a region; by default BUILD's, or AWS's own.")] = None,
    deployer_policy: Annotated[
        bool,
        typer.Option(
            "--deployer-policy", help="With --build: print the IAM policies that deploying takes, a JSON list."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine or an AWS account has, what is missing, how to get it; exit code 4 if something is."""
    if (build or region or deployer_policy) and not aws:
        raise UsageError("--build, --region and --deployer-policy go with --aws")
    if deployer_policy:
        _print_policy(build)
        return
    checks = _examined(aws, build, region)
    if as_json:
        for check in checks:
            print_json(asdict(check))
    else:
        display.print_checks(out, checks)
    if not all(check.ok for check in checks):
        raise UnavailableError("something is missing: see the lines above")


def _examined(aws: bool, build: Path | None, region: str | None) -> Sequence[Check]:  # noqa: FBT001 - a flag, passed on
    if aws:
        from serfer.doctor.aws import examine_aws  # noqa: PLC0415 - imports boto3

        with status_line() as progress:
            progress("asking AWS")
            return examine_aws(load_settings().facts(), build, region)
    from serfer.doctor.machine import examine  # noqa: PLC0415 - looks at packages that other commands do not need

    return examine(load_settings())


def _print_policy(build: Path | None) -> None:
    from serfer.doctor.aws import deployer_policies  # noqa: PLC0415 - imports boto3

    if build is None:
        raise UsageError("--deployer-policy depends on what is deployed: give --build BUILD")
    print(json.dumps(deployer_policies(build), indent=2))  # noqa: T201 - goes out as it is


def _standard_input() -> bytes:
    return sys.stdin.buffer.read(load_settings().max_image_bytes + 1)


def _example(size: str | None, channels: int | None) -> NDArray[np.float32] | None:
    from serfer.core.plan import MAX_ELEMENTS  # noqa: PLC0415 - the command line starts fast

    if size is None:
        if channels is not None:
            raise UsageError("--channels says more about --size: give both")
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if match is None:
        raise UsageError(f"{size!r} is no size: write HEIGHTxWIDTH such as 224x224")
    shape = (channels or _RGB, int(match[1]), int(match[2]))
    if prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"--size {size} is too large: an image may have {MAX_ELEMENTS:,} values, not {prod(shape):,}")
    return np.random.default_rng(0).standard_normal((1, *shape), dtype=np.float32)


def _share(name: str, value: float, most: float = inf) -> float:
    """Return an option's value; raises UsageError for what is no share."""
    if not (0 <= value <= most and value < inf):
        raise UsageError(f"{name} is a share from 0 {f'to {most:g}' if most < inf else 'up'}, not {value:g}")
    return value


def _memory_in(text: str) -> list[int] | None:
    """Read --memory: auto, a number or several."""
    if text == "auto":
        return None
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text):
        raise UsageError(f"--memory is auto or MB such as 1769 or 1769,3538, not {text!r}")
    return [int(size) for size in text.split(",")]


def _names_in(text: str | None) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--cuts {text!r} lacks a name: write operators with commas between them")
    return names


def _print_plan(plan: Plan, as_json: bool) -> None:  # noqa: FBT001 - a command's flag, passed on
    if as_json:
        print_json(unstructure(plan))
    else:
        display.print_plan(out, plan, load_settings().facts().functions)


def main() -> None:
    """Run the command line and exit with a code that says how it went."""
    run(app)
