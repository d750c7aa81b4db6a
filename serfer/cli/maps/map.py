"""`serfer map`: a network over images that no memory holds."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from serfer.cli.shared.map_display import MapDisplay, print_estimate, print_many, print_report, watching
from serfer.cli.shared.map_network_options import (
    BoxesOption,
    ImageChannelsOption,
    KeptMapsOption,
    MapLabelsOption,
    MapPreprocessOption,
    MemoryOption,
    NetworkOption,
    ReduceOption,
    StatisticsOption,
    WindowOption,
    map_network,
    plan_to_map_by,
)
from serfer.cli.shared.named_model import DownloadOption, RandomOption, WeightsFileOption, WeightsFrom
from serfer.cli.shared.offline import (
    YieldLatencyOption,
    YieldToOption,
    YieldUtilisationOption,
)
from serfer.cli.shared.options import (
    EngineOption,
    JsonOption,
    ObjectStoreOption,
    StackOption,
    StoreOption,
    WorkersOption,
)
from serfer.cli.shared.terminal import complain, uninterrupted
from serfer.control.throttle import Thresholds
from serfer.core.errors import IncompleteMapError, SerferError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from serfer.mapping.image_job import Mapper
    from serfer.mapping.map import Opening
    from serfer.mapping.options import MapOptions, NoData


def map_images(
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE...",
            help="TIFF, GeoTIFF, PNG or JPEG: files, s3://BUCKET/KEY, folders, or prefixes s3://BUCKET/PREFIX/.",
        ),
    ] = None,
    *,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="DIR", help="A map plan from serfer map-plan, for these sizes or any."),
    ] = None,
    network: NetworkOption = None,
    result: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="RESULT",
            help="The result, .tif, .png or .npy, of a detector's plan also .geojson or .json (COCO): a file, or "
            "s3://BUCKET/KEY. Of several images or a folder, a folder or prefix.",
        ),
    ],
    images_from: Annotated[
        Path | None, typer.Option("--list", metavar="FILE", help="More images, one a line, such as those of retry.txt.")
    ] = None,
    suffix: Annotated[str, typer.Option(help="Of results in a folder: .tif, .png, .npy, .geojson or .json.")] = ".tif",
    bands: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="The image's bands that are the network's channels, from 1, such as 4,3,2."),
    ] = None,
    full_scale: Annotated[
        float | None,
        typer.Option(
            help="The value that counts as 255 does in a picture of 8 bits; by default the largest of the image's "
            "type, and 1 for floating point."
        ),
    ] = None,
    no_data: Annotated[
        str,
        typer.Option(
            metavar="VALUE",
            help="Pixels with this value in all bands hold no data: a number, auto (what the image says) or none.",
        ),
    ] = "auto",
    no_data_bands: Annotated[
        str,
        typer.Option(
            metavar="all|any",
            help="Whether all of the bands that the network takes have that value in a pixel without data, or any.",
        ),
    ] = "all",
    dtype: Annotated[
        str | None, typer.Option(help="The result's type, where the network's output is of whole numbers: uint8, ...")
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Of a detector: the least score of a box, in place of the plan's."),
    ] = None,
    max_iou: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Of a detector: the most of their union that two boxes of a class may share."
        ),
    ] = None,
    one_file: Annotated[
        bool,
        typer.Option(
            "--one-file",
            help="Of a network with several outputs: all of them as bands of RESULT, and not a file of each, "
            "RESULT.NAME.tif.",
        ),
    ] = False,
    compression: Annotated[str, typer.Option(help="Of a TIFF: deflate, zstd or none.")] = "deflate",
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Windows in flight; by default by workers and memory.")
    ] = None,
    max_cost_usd: Annotated[
        float | None,
        typer.Option(help="Dollars that may be spent, with what is in flight at its predicted price."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if more than --max-cost-usd is predicted.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print what it will take; compute nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a result that exists.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what an earlier run has computed.")] = False,
    parts: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where finished windows are kept; by default RESULT.parts, until the end."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Before the result is written, compare it with the network, run in one piece on parts of the image.",
        ),
    ] = True,
    work: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder of maps that passes over an image keep for later ones; by default beside the parts.",
        ),
    ] = None,
    weights_file: WeightsFileOption = None,
    random: RandomOption = False,
    download: DownloadOption = False,
    window: WindowOption = "auto",
    channels: ImageChannelsOption = 3,
    reduce: ReduceOption = None,
    output: BoxesOption = None,
    statistics: StatisticsOption = "auto",
    kept_maps: KeptMapsOption = "auto",
    preprocess: MapPreprocessOption = None,
    labels: MapLabelsOption = None,
    memory: MemoryOption = "auto",
    store: StoreOption = None,
    object_store: ObjectStoreOption = None,
    workers: WorkersOption = None,
    stack: StackOption = None,
    engine: EngineOption = "push",
    yield_to: YieldToOption = None,
    yield_utilisation: YieldUtilisationOption = Thresholds.utilisation,
    yield_latency: YieldLatencyOption = Thresholds.latency,
    as_json: JsonOption = False,
) -> None:
    """Run a network over images that no memory holds, window by window, as if it were run on the whole.

    Whatever stops it, the same command goes on with what is missing. Exit code 1 where windows or images failed for
    good, or --max-cost-usd was reached: what is done is kept.
    """
    from serfer.mapping.image_list import is_many, map_items, read_list  # noqa: PLC0415 - the command line starts fast
    from serfer.mapping.map import Opening  # noqa: PLC0415 - same
    from serfer.wiring.options import workers_of  # noqa: PLC0415 - same

    options = _options(
        bands, full_scale, no_data, dtype, compression, concurrency, max_cost_usd, force, overwrite, restart, parts
    )
    options = replace(
        options,
        no_data_bands=_no_data_bands(no_data_bands),
        one_file=one_file,
        work=work,
        min_score=min_score,
        max_iou=max_iou,
        check=check,
    )
    if not dry_run:
        options = replace(
            options, yield_to=tuple(yield_to or ()), yield_utilisation=yield_utilisation, yield_latency=yield_latency
        )
    named = [*(images or ()), *(read_list(images_from) if images_from else ())]
    if not named:
        raise UsageError("no image was given: name files, folders or s3://BUCKET/KEY")
    workers = workers_of(workers, stack, "local")
    described = map_network(
        network,
        WeightsFrom(weights_file, random, download),
        window=window,
        channels=channels,
        reduce=reduce,
        output=output,
        statistics=statistics,
        kept_maps=kept_maps,
        preprocess=preprocess,
        labels=labels,
        memory=memory,
    )
    directory = plan_to_map_by(
        plan,
        described,
        lambda: [item.image for item in map_items(named, result, suffix)],
        deployed=workers == "aws",
    )
    opening = Opening(directory, store, workers, engine, object_store, stack)
    with _mapper(opening, options) as (mapper, watcher):
        if images_from or is_many(named, result):
            _map_many(mapper, named, result, suffix, dry_run=dry_run, as_json=as_json)
        elif dry_run:
            print_estimate(named[0], mapper.estimate(named[0], result), mapper.places(result), as_json=as_json)
        else:
            _map_one(mapper, named[0], result, watcher, as_json=as_json)


@contextmanager
def _mapper(opening: Opening, options: MapOptions) -> Iterator[tuple[Mapper, MapDisplay]]:
    """Open a mapper, and show what it does, within the block."""
    from serfer.mapping.map import open_mapper  # noqa: PLC0415 - the command line starts fast

    with ExitStack() as closing:
        watcher = closing.enter_context(watching())
        mapper = closing.enter_context(open_mapper(opening, options, watcher))
        closing.callback(_close, opening, watcher)
        yield mapper, watcher


def _close(opening: Opening, watcher: MapDisplay) -> None:
    watcher.stop()
    with uninterrupted():  # cleaning up takes no time; a second Ctrl-C must not leave it half done
        opening.close()


def _map_one(mapper: Mapper, image: str, result: str, watcher: MapDisplay, *, as_json: bool) -> None:
    try:
        report = mapper.map(image, result)
    except IncompleteMapError as error:
        watcher.stop()
        print_report(error.report, as_json=as_json)
        raise
    watcher.stop()
    print_report(report, as_json=as_json)


def _map_many(mapper: Mapper, images: Sequence[str], out: str, suffix: str, *, dry_run: bool, as_json: bool) -> None:
    from serfer.mapping.image_list import map_items  # noqa: PLC0415 - the command line starts fast
    from serfer.mapping.many_images import ManyImages  # noqa: PLC0415 - same

    if mapper.options.parts is not None:
        raise UsageError("--parts is for one image: those of many are kept next to each image's result")
    items = map_items(images, out, suffix)
    many = ManyImages(
        replace(mapper, start_below_ceiling=False), out, lambda report: print_report(report, as_json=as_json)
    )
    if dry_run:
        for item, estimate in many.estimates(items):
            if isinstance(estimate, SerferError):
                complain(estimate)
            else:
                print_estimate(item.image, estimate, mapper.places(item.result), as_json=as_json)
        return
    many.check_dollars(items)
    report = many.run(items)
    print_many(report, out, many.retry_path, as_json=as_json)
    if left := len(report.failed) + len(report.untried):
        raise IncompleteMapError(
            f"{left:,} of {len(items):,} images are left, listed in {many.retry_path}: run the same command again, it "
            "goes on with them",
            report,
        )


def _options(
    bands: str | None,
    full_scale: float | None,
    no_data: str,
    dtype: str | None,
    compression: str,
    concurrency: int | None,
    max_cost_usd: float | None,
    force: bool,  # noqa: FBT001 - a command's flag, passed on
    overwrite: bool,  # noqa: FBT001 - same
    restart: bool,  # noqa: FBT001 - same
    parts: str | None,
) -> MapOptions:
    from serfer.mapping.options import MapOptions  # noqa: PLC0415 - the command line starts fast

    return MapOptions(
        bands=_numbers(bands),
        full_scale=full_scale,
        no_data=_no_data(no_data),
        dtype=dtype,
        compression=_compression(compression),
        concurrency=concurrency,
        max_cost_usd=max_cost_usd,
        force=force,
        overwrite=overwrite,
        restart=restart,
        parts=parts,
    )


def _numbers(bands: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(band) for band in bands.split(",")) if bands is not None else ()
    except ValueError:
        raise UsageError(f"--bands is a list of numbers such as 4,3,2, not {bands!r}") from None


def _no_data(value: str) -> NoData:
    if value == "auto":
        return "auto"
    if value == "none":
        return "none"
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"--no-data is a number, auto or none, not {value!r}") from None


def _no_data_bands(value: str) -> Literal["all", "any"]:
    if value not in ("all", "any"):
        raise UsageError(f"--no-data-bands is all or any, not {value!r}")
    return "any" if value == "any" else "all"


def _compression(name: str) -> Literal["deflate", "zstd", "none"]:
    match name:
        case "deflate" | "zstd" | "none":
            return name
        case _:
            raise UsageError(f"--compression is deflate, zstd or none, not {name!r}")
