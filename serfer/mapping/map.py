"""`serfer.map`: an image of any size through a map plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from serfer.control.throttle import Thresholds
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import UsageError
from serfer.mapping.boxes import decoder_of
from serfer.mapping.comparison import whole_of
from serfer.mapping.engine import Spending
from serfer.mapping.estimate import WindowPrices
from serfer.mapping.image_job import Mapper
from serfer.mapping.image_list import map_items
from serfer.mapping.lazy_array import map_array
from serfer.mapping.many_images import ManyImages, ManyReport
from serfer.mapping.map_network import chosen_plan, with_map_values
from serfer.mapping.options import MapOptions
from serfer.mapping.report import MapReport, MapWatcher
from serfer.offline.gate import OfflineGate
from serfer.offline.load_source import service_loads
from serfer.pipeline.blocking import Pipeline
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer.wiring.options import workers_of
from serfer.wiring.pipeline_options import PipelineOptions

_IN_FLIGHT_BYTES = 512 * 1024 * 1024
_SUFFIX = ".tif"
_SHARE = 4  # of an account's concurrency, one part is for maps


def map_image(
    image: Path | str,
    plan: Path | str | None = None,
    out: Path | str | None = None,
    *,
    network: Any = None,  # noqa: ANN401 - as MapNetwork.model, or one
    settings: Settings | None = None,
    options: MapOptions | None = None,
    **values: Any,  # noqa: ANN401 - of MapOptions
) -> MapReport:
    """Run a map plan's network over an image, window by window, and write the result.

    Stopped anywhere, the same call goes on with what is missing.

    Args:
        image: a TIFF, BigTIFF, cloud-optimised GeoTIFF, PNG or JPEG: a path, or `s3://BUCKET/KEY`. Or a dask array
            (bands, rows, cols), whose map is another one, lazy, without `out` and with values of `serfer.windows`; of a
            network with several outputs there is one of each, by their names.
        plan: a map plan's directory, for images of this size; or None with a `network`.
        out: the result, a path or `s3://BUCKET/KEY` that ends in .tif, .png or .npy; of a network with several outputs
            there is a file of each, out.NAME.tif. Boxes of a detector's plan end in .geojson or .json (COCO).
        network: in place of a plan an ONNX file, "module.py:factory", "timm:NAME", "torchvision:NAME" or an nn.Module,
            or a `serfer.MapNetwork`, which says more of it. Its plan is made, for images of any size or else for this
            one's, and kept in the cache: the next map finds it there.
        settings: instead of those of the environment.
        options: how the image is mapped.
        values: fields of `serfer.MapOptions` by name, in place of those of `options`: `max_cost_usd=2.0`.

    Raises:
        InputError: the image, the plan, the parts of an earlier run or the result's place do not go together.
        UsageError: options that do not, or more dollars predicted than may be spent.
        ModelError: the network has no plan.
        IncompleteMapError: windows failed for good, the dollars are spent, or the result is not what the network makes
            of parts of the image; what is done is kept.
        UnavailableError: the disk is full, or S3, the store or the functions cannot be reached.
    """
    if not isinstance(image, str | Path):
        if out is not None or options is not None:
            raise UsageError("the map of an array is an array: leave out and options out, and give values by name")
        return map_array(image, plan, network=network, settings=settings, **values)
    options = with_map_values(MapOptions, options, values)
    out, settings = _place(out), settings or load_settings()
    directory = _plan(plan, network, [image], out, settings, options)
    with open_mapper(Opening(directory, options), options, MapWatcher(), settings) as mapper:
        return mapper.map(image, out)


def map_many(
    images: Sequence[Path | str],
    plan: Path | str | None = None,
    out: Path | str | None = None,
    *,
    network: Any = None,  # noqa: ANN401 - as MapNetwork.model, or one
    suffix: str = _SUFFIX,
    settings: Settings | None = None,
    options: MapOptions | None = None,
    **values: Any,  # noqa: ANN401 - of MapOptions
) -> ManyReport:
    """Map images, folders and prefixes `s3://BUCKET/PREFIX/` into a folder or prefix, one image after the other.

    What fails is in the report's `failed`, the others go on. The same call does what is left: `out` has a manifest of
    what is done. Results have `suffix`: .tif, .png or .npy. `network`, in place of a plan, is as that of `map`, whose
    plan is for the sizes of all images here where it is not for any. `options` and `values` are those of `map`, for
    each image; the dollars that may be spent are for all together. Raises UsageError for results of one name, and for
    more dollars predicted than may be spent; UnavailableError where that has come of several images in a row.
    """
    options = with_map_values(MapOptions, options, values)
    out, settings = _place(out), settings or load_settings()
    directory = _plan(plan, network, images, out, settings, options)
    items = map_items([str(image) for image in images], str(out), suffix)
    with open_mapper(Opening(directory, options), options, MapWatcher(), settings) as mapper:
        many = ManyImages(replace(mapper, start_below_ceiling=False), str(out), lambda _: None)
        many.check_dollars(items)
        return many.run(items)


def _place(out: Path | str | None) -> Path | str:
    if out is None:
        raise UsageError("say where the result is to be: out=PATH")
    return out


def _plan(
    plan: Path | str | None,
    network: Any,  # noqa: ANN401 - as above
    images: Sequence[Path | str],
    out: Path | str,
    settings: Settings,
    options: MapOptions,
) -> Path:
    named, deployed = [str(image) for image in images], workers_of(options.workers, options.stack) == "aws"

    def meant() -> list[str]:
        return [item.image for item in map_items(named, str(out), _SUFFIX)]

    return chosen_plan(plan, network, meant, settings, deployed=deployed).directory


class Opening:
    """How the pipeline of a plan directory is opened, once it is needed."""

    def __init__(self, directory: Path, options: PipelineOptions) -> None:
        self.directory, self.workers = directory, workers_of(options.workers, options.stack)
        self._options = options
        self._pipeline: Pipeline | None = None

    def pipeline(self, settings: Settings) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = open_pipeline(
                self.directory,
                store=self._options.store,
                workers=self.workers,
                driver=self._options.engine,
                object_store=self._options.object_store,
                stack=self._options.stack,
                settings=settings,
            )
        return self._pipeline

    def throttled(self) -> int:
        load = self._pipeline.function_load() if self._pipeline is not None else None
        return load.throttled if load else 0

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()


@contextmanager
def open_mapper(
    opening: Opening, options: MapOptions, watcher: MapWatcher, settings: Settings | None = None
) -> Iterator[Mapper]:
    """Make what maps images by one plan; its pipeline is opened when a window is missing."""
    settings = settings or load_settings()
    facts = settings.facts()
    plan = load_plan(opening.directory)
    sources = service_loads(options.yield_to, settings.yield_key.get_secret_value())
    limits = Thresholds(options.yield_utilisation, options.yield_latency)
    gate = OfflineGate(sources, limits=limits, refused=opening.throttled)
    with ExitStack() as stack:
        stack.callback(opening.close)
        stack.enter_context(gate.watching())
        yield Mapper(
            plan=plan,
            options=options,
            prices=WindowPrices(plan, facts),
            spending=Spending(options.max_cost_usd),
            pipeline=lambda: opening.pipeline(settings),
            concurrency=lambda size: options.concurrency or in_flight(opening.workers, size, settings, facts),
            watcher=watcher,
            gate=gate,
            decoder=cache(lambda: decoder_of(plan, opening.directory)),
            whole=lambda: whole_of(plan, opening.directory),
        )


def in_flight(workers: str, window_bytes: int, settings: Settings, facts: AwsFacts) -> int:
    """Return how many windows are in flight: what the workers are for, and what half a GiB of memory holds."""
    slots = facts.functions.concurrency // _SHARE
    if workers != "aws":
        slots = min(settings.local_concurrency, (os.cpu_count() or 1) + (workers == "local"))
    return max(1, min(slots, _IN_FLIGHT_BYTES // window_bytes))
