"""The options of `serfer map` and `serfer map-plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from serfer.cli.shared.option_groups import JsonOptions, NamedNetworkOptions, ProfilesOptions, WeightsOptions
from serfer.core.options import REQUIRED, argument, option
from serfer.mapping.options import MapOptions
from serfer.splitter.map_plan_options import MapPlanOptions


@dataclass(frozen=True, kw_only=True)
class MapCommand(MapOptions, MapPlanOptions, WeightsOptions, NamedNetworkOptions, JsonOptions):
    """Run a network over images that no memory holds, window by window, as if it were run on the whole.

    Whatever stops it, the same command goes on with what is missing. Exit code 1 where windows or images failed for
    good, or --max-cost-usd was reached: what is done is kept.
    """

    command: ClassVar[str] = "map"
    line: ClassVar[str] = (
        "plan network preprocess reduce out bands no_data max_cost_usd dry_run overwrite restart yield_to workers "
        "stack as_json"
    )

    images: tuple[str, ...] = argument(
        (), "TIFF, GeoTIFF, PNG or JPEG: files, folders, s3://BUCKET/KEY or s3://BUCKET/PREFIX/.", metavar="IMAGE..."
    )
    plan: Path | None = option(None, "A map plan from serfer map-plan, for these sizes or any.", metavar="DIR")
    out: str = option(
        REQUIRED,
        "The result, .tif, .png or .npy, of a detector's plan also .geojson or .json (COCO): a file, or "
        "s3://BUCKET/KEY. Of several images or a folder, a folder or prefix.",
        metavar="RESULT",
    )
    image_list: Path | None = option(None, "A file with more images, one a line, such as those of retry.txt.")
    suffix: str = option(".tif", "Of results in a folder: .tif, .png, .npy, .geojson or .json.")
    dry_run: bool = option(False, "Check everything and print what it will take; compute nothing.")


@dataclass(frozen=True, kw_only=True)
class MapPlanCommand(MapPlanOptions, WeightsOptions, ProfilesOptions, JsonOptions):
    """Make a plan that runs a network over images of any size, window by window, as if on the whole image.

    Means, variances and maxima over the whole image (group and instance norm, squeeze-and-excite, global and pyramid
    pooling) are added up in passes before the map. A network that looks at the whole image otherwise is refused by
    name.
    """

    command: ClassVar[str] = "map-plan"
    line: ClassVar[str] = "out sizes window channels reduce output preprocess labels memory_mb store name as_json"

    model: str = argument(
        REQUIRED,
        "An .onnx file whose height and width are free, or module.py:factory, a function without arguments that "
        "returns the nn.Module (the file is imported and run, so it must be one that you trust); or timm:NAME or "
        "torchvision:NAME.",
        metavar="MODEL",
    )
    out: Path = option(REQUIRED, "The plan directory to write; a plan there is replaced.", metavar="DIR")
    sizes: tuple[str, ...] = option(
        REQUIRED,
        "HEIGHTxWIDTH of the images, in pixels; several may be given. Or any: one plan for images of all sizes that "
        "the network takes; or any,multiple=8, for those that are multiples of 8 pixels.",
        "--size",
        metavar="SIZE",
    )
    store: str = option("redis", "What predictions are for: redis, s3 or valkey.")
