"""`serfer split`: a network becomes a plan directory."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.explain import changes_of, print_plan_json
from serfer.cli.shared.named_model import DownloadOption, RandomOption, WeightsFileOption
from serfer.cli.shared.network_options import example_of, range_in, size_in
from serfer.cli.shared.option_groups import WeightsOptions
from serfer.cli.shared.options import (
    AccountOption,
    JsonOption,
    NameOption,
    PerMonthOption,
    ProfilesOption,
    memory_in,
    share,
    status_line,
)
from serfer.cli.shared.plan_summary import print_summary
from serfer.cli.shared.terminal import complain
from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.core.costs.cost_model import MEASURED_MEMBERS
from serfer.core.errors import UsageError
from serfer.core.plan import Plan, explained
from serfer.core.units import MIB
from serfer.doctor.accounts import quotas_for
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.settings import Settings, load_settings
from serfer.splitter.network.zoo import ZOO
from serfer.splitter.planning.split_options import DEFAULT_COLD_ENVIRONMENTS, DEFAULT_WEIGHTS

_OF_WHOLE = frozenset(
    {
        *(
            "model",
            "directory",
            "weights_file",
            "random",
            "download",
            "whole",
            "weights",
            "size",
            "channels",
            "preprocess",
            "labels",
            "output",
            "memory",
        ),
        *("store", "profiles", "safety", "limit_mb", "account", "name", "per_month", "as_json"),
    }
)
"""The parameters that go with --whole."""
_BOUNDS = ("grids", "stages", "cuts", "gang", "max_tiles", "max_cost_usd")
"""The parameters that rule plans out."""


def split(
    model: Annotated[
        str,
        typer.Argument(
            help="An .onnx file; module.py:factory, a function without arguments that returns the nn.Module (the file "
            "is imported and run, so it must be one that you trust); timm:NAME or torchvision:NAME, with the "
            f"preprocessing and labels of its weights; or a model of the zoo: {', '.join(ZOO)}."
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", help="The plan directory to write; a plan there is replaced.")],
    context: typer.Context,
    weights_file: WeightsFileOption = None,
    random: RandomOption = False,
    download: DownloadOption = False,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Split nothing: one function that runs the network as it is, any that ONNX Runtime runs, written "
            "without a search. Goes with options about input, outputs, memory, weights, store and account alone.",
        ),
    ] = False,
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
        float | None, typer.Option(help="Dollars that a query may cost, as predicted, cold ones in their share.")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Storage of weights: fp32, fp16, or auto (fp16 where --max-loss allows it, or a stage would not fit)."
        ),
    ] = "auto",
    weights: Annotated[
        str,
        typer.Option(
            help="Where functions have their weights: zip; fetched, from the deployment's bucket; image, in container "
            "images; or auto: in zips where those hold them, else fetched."
        ),
    ] = DEFAULT_WEIGHTS,
    cold_share: Annotated[
        float,
        typer.Option(
            help="The share of queries that find nothing warm, 0 to 1: what --objective has least of are latency and "
            "dollars of a warm query and of such a one, in their shares. The default is assumed."
        ),
    ] = COLD_SHARE,
    cold_plan: Annotated[
        str,
        typer.Option(
            help="A second plan, in DIR/cold, for queries that find nothing warm: never; always; or auto, where its "
            "first answer is predicted to come at least a fifth earlier."
        ),
    ] = "never",
    cold_environments: Annotated[
        int, typer.Option(help="Environments that a query on the cold plan may start, at most.")
    ] = DEFAULT_COLD_ENVIRONMENTS,
    max_loss: Annotated[
        float | None,
        typer.Option(
            help="What storing weights in fp16 may lose, as a share of the outputs' range, predicted and measured; "
            "without it, weights stay in fp32 unless nothing else fits."
        ),
    ] = None,
    gap: Annotated[
        str,
        typer.Option(
            help="Global average pooling in place of a fully connected head: never, always, or auto (where the head "
            "does not fit even in fp16, and there are --calibration images to fit it to)."
        ),
    ] = "auto",
    gang: Annotated[
        str,
        typer.Option(
            help="Consecutive stages as one function, whose tiles stay and exchange halos while they run: never, "
            "always, or auto, where that is predicted to win. With --cuts, --stages or several --grids, auto has none "
            "and always makes one of every run of stages that can be one. Not over S3."
        ),
    ] = "auto",
    gang_width: Annotated[
        int,
        typer.Option(
            help="Members of a gang at most, where the planner chooses its grid. Predictions agreed with "
            "measurements for gangs of two; wider ones are marked as simulated."
        ),
    ] = MEASURED_MEMBERS,
    calibration: Annotated[Path | None, typer.Option(help="A folder with a folder of images for each class.")] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="The input's HEIGHTxWIDTH; a model known by name or an ONNX file may fix its own. With --whole also "
            "a range, such as 32..2016x32..2016,multiple=32,pixels=1048576, for images of many sizes."
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="The input's channels, with --size; the file's, or 3, by default."),
    ] = None,
    preprocess: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file: how an image becomes the input (docs/how-to/preprocess.md).",
            show_default="stretched to its size, RGB, values from 0 to 1",
        ),
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A text file with a class's name in each line.")] = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="What the network's output is: scores, by softmax, sigmoid or none; or boxes, of a detector "
            "(docs/how-to/detect.md), as boxes:yolov8,score=0.25,iou=0.45,most=300 or any part of that."
        ),
    ] = None,
    reduce: Annotated[
        str | None,
        typer.Option(
            help="Make answers small, in the last stage's tiles: of the first output that is a map, argmax, the class "
            "of each position; softmax, over channels; or sigmoid."
        ),
    ] = None,
    resize_output: Annotated[
        str | None, typer.Option(metavar="HxW", help="Resize that output first, linearly, to so many rows x columns.")
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
    account: AccountOption = None,
    name: NameOption = None,
    per_month: PerMonthOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split a model into stages and tiles, prove the parts equal to the whole, and write a plan directory."""
    sizes = range_in(size)
    if sizes and not whole:
        raise UsageError(f"--size {size} is a range of sizes: it goes with --whole, as tiles are those of one size")
    example = example_of(size, channels, model, ranges=True)
    if example is None and ".py:" in model:
        raise UsageError(f"the size of {model}'s input is not known: give --size HEIGHTxWIDTH")
    chosen = WeightsOptions(weights_file=weights_file, random=random, download=download).model_with_weights(model)
    settings = load_settings()
    quotas = quotas_for(settings, account)
    measured = settings.profiles(profiles, share("--safety", safety))
    if whole:
        _check_whole(context)
        from serfer.splitter.whole import whole_plan  # noqa: PLC0415 - the command line starts fast

        with status_line() as progress:
            plan = whole_plan(
                chosen,
                example,
                directory,
                assume_preprocess=True,
                preprocess=preprocess,
                labels=labels or (),
                activation=output,
                name=name,
                sizes=sizes,
                weights=weights,
                store=store,
                memory_mb=memory_in(memory),
                limit_mb=limit_mb,
                account=quotas,
                facts=settings.facts(),
                profiles=measured,
                progress=progress,
            )
    else:
        from serfer.splitter.network.description import read_labels, read_preprocess  # noqa: PLC0415 - the command line starts fast
        from serfer.splitter.split import split as split_model  # noqa: PLC0415 - same

        with status_line() as progress:
            plan = split_model(
                chosen,
                example,
                directory,
                grids=grids,
                stages=stages,
                cuts=_names_in(cuts),
                objective=objective,
                precision=precision,
                weights=weights,
                cold_share=share("--cold-share", cold_share, 1),
                cold_plan=cold_plan,
                cold_environments=cold_environments,
                max_loss=max_loss,
                gap=gap,
                gang=gang,
                gang_width=gang_width,
                calibration=calibration,
                slo_ms=slo_ms,
                max_cost_usd=max_cost_usd,
                max_tiles=max_tiles,
                store=store,
                memory_mb=memory_in(memory),
                limit_mb=limit_mb,
                account=quotas,
                dependency_bytes=lambda: dependency_bytes(settings, progress),
                assume_preprocess=True,
                preprocess=read_preprocess(preprocess) if preprocess else None,
                labels=read_labels(labels) if labels else (),
                activation=output,
                reduce=reduce,
                resize_output=None if resize_output is None else size_in("--resize-output", resize_output),
                name=name,
                facts=settings.facts(),
                profiles=measured,
                progress=progress,
            )
    from serfer.wiring.network_file import assumption  # noqa: PLC0415 - the command line starts fast

    if as_json:
        print_plan_json(plan, per_month or ())
    else:
        given = ["--whole"] if whole else _given(context, _BOUNDS)
        print_summary(plan, directory, settings.facts(), per_month or (), given)
        for line in changes_of(plan):
            complain(line)
        if preprocess is None and (said := assumption(plan)):
            complain(said)
    _warn_of_aws(plan, settings, quotas)


def _warn_of_aws(plan: Plan, settings: Settings, quotas: AccountQuotas) -> None:
    """Print what keeps a plan from AWS."""
    from serfer.sam.quotas import account_notes  # noqa: PLC0415 - imports botocore

    if (limit := explained(plan.limit).package) > settings.facts().functions.package_limit:
        complain(f"with --limit-mb {limit // MIB}, more than AWS allows, this plan runs on this machine only")
        return
    for note in account_notes([plan], quotas):
        complain(f"in AWS: {note}")


def _check_whole(context: typer.Context) -> None:
    """Refuse options that do not go with --whole; raises UsageError that names them."""
    names = {parameter.name or "" for parameter in context.command.params}
    if wrong := _given(context, names - _OF_WHOLE):
        raise UsageError(f"--whole splits nothing, and chooses from nothing: leave out {', '.join(wrong)}")


def _given(context: typer.Context, names: Container[str]) -> list[str]:
    """Return those options of the parameters `names` that stand on the command line."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and (source := context.get_parameter_source(parameter.name or ""))
        and source.name == "COMMANDLINE"
    ]


def dependency_bytes(settings: Settings, progress: Callable[[str], None]) -> int:
    """Return the bytes of a function's code and dependencies, here or in AWS, whichever are more."""
    from serfer.wiring import local  # noqa: PLC0415 - imports what local workers need

    return max(DEPENDENCY_ALLOWANCE, local.dependency_bytes(settings, progress))


def _names_in(text: str | None) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(f"--cuts {text!r} lacks a name: write operators with commas between them")
    return names
