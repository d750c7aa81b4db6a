"""`serfer split`, `explain` and `verify`: plan directories, made, shown and checked."""

from __future__ import annotations

import re
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from serfer.cli import display
from serfer.cli.options import (
    DriverOption,
    JsonOption,
    ObjectStoreOption,
    PlanArgument,
    ProfilesOption,
    StackOption,
    StoreOption,
    VerifyWorkersOption,
    opened,
    print_json,
    share,
    status_line,
)
from serfer.cli.terminal import complain, err, out
from serfer.core.errors import UsageError, WrongAnswerError
from serfer.core.exactness import TOLERANCE
from serfer.core.structure import unstructure
from serfer.settings import load_settings
from serfer.wiring.options import workers_of
from splitter.network.zoo import ZOO

if TYPE_CHECKING:
    from serfer.core.plan import Plan

_RGB = 3  # channels, unless said otherwise


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
        Path | None, typer.Option(help="A TOML file: how an image becomes the input (docs/how-to/preprocess.md).")
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
    measured = settings.profiles(profiles, share("--safety", safety))
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
    from serfer.plan_directory import load_plan  # noqa: PLC0415 - the command line starts fast

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
    lost against the model as it was given is reported as well.
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


def _example(size: str | None, channels: int | None) -> NDArray[np.float32] | None:
    from serfer.core.plan import MAX_ELEMENTS  # noqa: PLC0415 - the command line starts fast

    if size is None:
        if channels is not None:
            raise UsageError("--channels says more about --size: give both")
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if match is None:
        raise UsageError(f"{size!r} is not a size: write HEIGHTxWIDTH such as 224x224")
    shape = (channels or _RGB, int(match[1]), int(match[2]))
    if prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"--size {size} is too large: an image may have {MAX_ELEMENTS:,} values, not {prod(shape):,}")
    return np.random.default_rng(0).standard_normal((1, *shape), dtype=np.float32)


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
