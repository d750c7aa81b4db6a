"""`serfer map`: a network over images that no memory holds."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from serfer.cli.maps.options import MapCommand
from serfer.cli.shared.map_display import MapDisplay, print_estimate, print_many, print_report
from serfer.cli.shared.option_groups import WeightsOptions
from serfer.cli.shared.options import status_lines
from serfer.cli.shared.plan_summary import Steps, chosen_line
from serfer.cli.shared.schema import settings_of
from serfer.cli.shared.terminal import complain, uninterrupted
from serfer.core.errors import IncompleteMapError, SerferError, UsageError
from serfer.core.options import changed
from serfer.mapping.image_list import is_many, map_items, read_list
from serfer.mapping.many_images import ManyImages
from serfer.mapping.map import Opening, open_mapper
from serfer.mapping.map_network import KeptMapPlan, MapNetwork, chosen_plan
from serfer.mapping.options import MapOptions
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.splitter.map_plan_options import MapPlanOptions
from serfer.wiring.options import workers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from serfer.mapping.image_job import Mapper


def map_images(options: MapCommand, context: typer.Context) -> None:
    settings = settings_of(context)
    if options.dry_run:
        options = replace(options, yield_to=())
    images = [*options.images, *(read_list(options.image_list) if options.image_list else ())]
    if not images:
        raise UsageError("no image was given: name files, folders or s3://BUCKET/KEY")
    options = replace(options, workers=workers_of(options.workers, options.stack, "local"))
    if options.network is None or options.workers != "aws":  # what is to be done there is said with its plan
        options.check_workers()
    directory = _plan_directory(options, images, settings)
    with _mapper(Opening(directory, options), options, settings) as (mapper, watcher):
        if options.image_list or is_many(images, options.out):
            _map_many(mapper, images, options)
        elif options.dry_run:
            estimate = mapper.estimate(images[0], options.out)
            print_estimate(images[0], estimate, mapper.places(options.out), as_json=options.as_json)
        else:
            _map_one(mapper, images[0], options.out, watcher, as_json=options.as_json)


@contextmanager
def _mapper(opening: Opening, options: MapOptions, settings: Settings) -> Iterator[tuple[Mapper, MapDisplay]]:
    watcher = MapDisplay()
    with open_mapper(opening, options, watcher, settings) as mapper:
        try:
            yield mapper, watcher
        finally:
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


def _map_many(mapper: Mapper, images: Sequence[str], options: MapCommand) -> None:
    if options.parts is not None:
        raise UsageError("parts is for one image: those of many are kept next to each image's result")
    items, as_json = map_items(images, options.out, options.suffix), options.as_json
    one_by_one = replace(mapper, start_below_ceiling=False)
    many = ManyImages(one_by_one, options.out, lambda report: print_report(report, as_json=as_json))
    if options.dry_run:
        for item, estimate in many.estimates(items):
            if isinstance(estimate, SerferError):
                complain(estimate)
            else:
                print_estimate(item.image, estimate, mapper.places(item.result), as_json=as_json)
        return
    many.check_dollars(items)
    report = many.run(items)
    print_many(report, options.out, many.retry_path, as_json=as_json)
    if left := len(report.failed) + len(report.untried):
        raise IncompleteMapError(
            f"{left:,} of {len(items):,} images are left, listed in {many.retry_path}: run the same command again, it "
            "goes on with them",
            report,
        )


def _plan_directory(options: MapCommand, images: Sequence[str], settings: Settings) -> Path:
    """Return a plan's directory, and say of a network's where it is and what for; raises UsageError as chosen_plan."""
    network = None
    if options.network is not None:
        described = {item.name: getattr(options, item.name) for item in fields(MapPlanOptions)}
        network = MapNetwork(options.model_with_weights(options.network), **described)
    elif given := [*changed(options, MapPlanOptions()), *changed(options, WeightsOptions())]:
        raise UsageError(f"{' and '.join(given)} describe a network, --network FILE: a plan has its own")

    def inputs() -> list[str]:
        return [item.image for item in map_items(images, options.out, options.suffix)]

    with status_lines() as progress:
        step = Steps(progress)
        kept = chosen_plan(options.plan, network, inputs, settings, deployed=options.workers == "aws", progress=step)
    if network is not None:
        _say(network.called, kept, made=step.made)
    return kept.directory


def _say(network: str, kept: KeptMapPlan, *, made: bool) -> None:
    plan = load_plan(kept.directory)
    windows = plan.windows
    assert windows is not None  # noqa: S101 - of a map plan
    if made:
        complain(chosen_line(plan))
    if windows.rules:
        images = f"images of any size, {windows.rules}"
    else:
        heights, widths = (" or ".join(f"{axis.size:,}" for axis in axes) for axes in (windows.heights, windows.widths))
        images = f"images of {heights} x {widths} pixels and not for any size: {kept.refused}"
    complain(f"the plan of {network} is kept in {kept.directory}, for {images}")
    if plan.preprocess is None:
        complain(f"{network} gets the values that images have, unchanged: --preprocess FILE.toml says what is right")
