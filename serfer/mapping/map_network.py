"""A network in place of a map plan: the plan is made when the network is first mapped with, and kept in the cache.

network, options ── SHA-256 ──▶ CACHE/plans/net-KEY, for images of any size
                          └──▶ CACHE/plans/net-KEY, for the sizes of the images at hand, where it cannot be for any

Why a network is not for any size is kept beside them (.serfer-net-KEY.refused), so that it is not tried again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from serfer.build_cache import cache_of
from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import InputError, ModelError, SerferError, UsageError, WrongAnswerError
from serfer.core.options import with_values
from serfer.core.plan import Plan
from serfer.extras import named_extras
from serfer.files import read_text, write_whole
from serfer.mapping.options import WindowOptions
from serfer.plan_directory import file_sha256, is_network_file, load_plan
from serfer.raster import open_raster
from serfer.settings import Settings
from serfer.splitter.map_plan_options import MapPlanOptions
from serfer.splitter.network.description import Description, Reduction
from serfer.splitter.network.named_models import NamedModel, is_named
from serfer.wiring.network_file import of_file, of_name, plan_name
from serfer.wiring.plan_cache import PLANS, cached_plan

ANY: Final = "any"
MOST_SIZES: Final = 16
"""Sizes of images that a plan is made for by itself."""
_Some = TypeVar("_Some", bound=WindowOptions)
_MOST_REFUSAL: Final = 4096  # bytes of the reason why a network is not for any size
_ADVICE: Final = re.compile(r"[:;,]( or)? give the sizes of your images.*", re.DOTALL)
Size = tuple[int, int]
"""Height and width of an image in pixels."""


@dataclass(frozen=True)
class MapNetwork(MapPlanOptions):
    """A network that maps images without a plan of the user's, and what its plan is made with.

    `model` is an ONNX file, "module.py:factory", "timm:NAME" or "torchvision:NAME" (or a `NamedModel`), or an
    nn.Module in evaluation mode.
    """

    model: Any

    @property
    def called(self) -> str:
        return str(self.model) if isinstance(self.model, str | Path | NamedModel) else type(self.model).__name__


def with_map_values(kind: type[_Some], options: _Some | None, values: Mapping[str, Any]) -> _Some:
    """As `with_values`; says of options of a plan where they go."""
    of_plan = {item.name for item in fields(MapPlanOptions)} - {item.name for item in fields(kind)}
    if found := sorted(values.keys() & of_plan):
        given = ", ".join(f"{name}=..." for name in found)
        raise UsageError(f"{given} is for making the plan: give network=serfer.MapNetwork(NETWORK, {given})")
    return with_values(kind, options, values)


@dataclass(frozen=True)
class KeptMapPlan:
    """The directory of a network's map plan; `refused` says why it is not for images of any size, if it is not."""

    directory: Path
    refused: str = ""


def chosen_plan(
    plan: Path | str | None,
    network: Any,  # noqa: ANN401 - as `MapNetwork.model`, or one
    images: Callable[[], Sequence[str]],
    settings: Settings,
    *,
    deployed: bool,
    progress: Callable[[str], None] = lambda _step: None,
) -> KeptMapPlan:
    """Return a plan that was given, or that of a network, which has no functions that are `deployed`."""
    if network is None:
        if plan is None:
            raise UsageError(
                "there is nothing to map with: give --plan DIR, a plan from serfer map-plan, or --network FILE, whose "
                "plan is made and kept"
            )
        return KeptMapPlan(Path(plan))
    if plan is not None:
        raise UsageError("--plan and --network exclude each other: a plan has its own network")
    network = network if isinstance(network, MapNetwork) else MapNetwork(network)
    if deployed:
        raise UsageError(
            f"{network.called} has no functions in AWS: write a plan (serfer map-plan {network.called} --size any "
            "--out plan), deploy that (serfer deploy package plan --out build), and give --plan plan"
        )
    return kept_map_plan(network, lambda: image_sizes(images()), settings, progress)


def image_sizes(images: Sequence[str]) -> Iterator[Size]:
    """Yield the sizes of images; those that cannot be opened are left out, unless that is so of all."""
    first, found = None, False
    for image in images:
        try:
            with open_raster(image) as source:
                size = source.size
        except SerferError as error:
            first = first or error
        else:
            found = True
            yield size
    if first is not None and not found:
        raise first


@named_extras()
def kept_map_plan(
    network: MapNetwork, sizes: Callable[[], Iterable[Size]], settings: Settings, progress: Callable[[str], None]
) -> KeptMapPlan:
    """Return the plan of a network in the cache, for images of any size or, where that is refused, of these `sizes`.

    It is made when there is none, and again whenever the network's file, its weights, an option, prices, profiles or
    the splitter's own code have changed; of several processes, one makes it. Raises as `serfer.map_plan` does,
    UsageError for more than MOST_SIZES sizes, UnavailableError for a cache that cannot be written.
    """
    called, parts = _parts(network, settings)

    def name(wanted: Sequence[Size] | str) -> str:
        return plan_name(called, {**parts, "sizes": wanted})

    def plan(wanted: Sequence[Size] | str) -> Path:
        def make(directory: Path) -> None:
            from serfer.splitter.map_plan import map_plan  # noqa: PLC0415 - imports onnx, which a plan in the cache spares

            sizes = [] if isinstance(wanted, str) else [f"{height} x {width} pixels" for height, width in wanted]
            what = " and ".join(sizes) or "any size"
            progress(f"planning {network.called} for images of {what}, once: the plan stays in {directory.parent}")
            map_plan(
                network.model,
                wanted,
                directory,
                options=network,
                facts=settings.facts(),
                profiles=settings.profiles(None, 0.0),
                progress=progress,
            )

        return cached_plan(settings.cache_dir, name(wanted), make)

    refusal = settings.cache_dir / PLANS / f".serfer-{name(ANY)}.refused"
    refused = _kept_refusal(refusal)
    if not refused:
        try:
            directory = plan(ANY)
        except (ModelError, UsageError, WrongAnswerError) as error:
            refused = _ADVICE.sub("", str(error))
        else:
            refused = _not_taken(load_plan(directory), sizes())
            if not refused:
                return KeptMapPlan(directory)
            return KeptMapPlan(plan(_distinct(sizes(), refused)), refused)
    directory = plan(_distinct(sizes(), refused))
    with cache_of(settings.cache_dir), suppress(InputError):  # a cache that cannot be written tries again
        write_whole(refusal, refused.encode()[:_MOST_REFUSAL])
    return KeptMapPlan(directory, refused)


def _kept_refusal(path: Path) -> str:
    if not path.is_file():
        return ""
    with suppress(InputError):  # removed meanwhile, or cut within a character
        return read_text(path, _MOST_REFUSAL)
    return ""


def _not_taken(plan: Plan, sizes: Iterable[Size]) -> str:
    windows, unit = plan.windows, plan.boxes.multiple if plan.boxes else 1
    assert windows is not None and windows.rules is not None  # noqa: S101, PT018 - of a plan for any size
    given = False
    for size in sizes:
        height, width = (-(-side // unit) * unit for side in size)
        if windows.rules.of(height, width) is not None:
            return ""
        given = True
    return f"that plan takes {windows.rules}" if given else ""


def _distinct(sizes: Iterable[Size], refused: str) -> list[Size]:
    found = sorted({*islice(dict.fromkeys(sizes), MOST_SIZES + 1)})
    if len(found) > MOST_SIZES:
        raise UsageError(
            f"the images have more than {MOST_SIZES} sizes, and the network has no plan for images of any size: "
            f"{refused}; map them in groups of fewer sizes, or pad them to one"
        )
    return found


def _parts(network: MapNetwork, settings: Settings) -> tuple[str, dict[str, Any]]:
    description = Description.of(
        network.preprocess,
        network.labels,
        network.output,
        Reduction.of(network.reduce, None),
        name=network.name,
        resized=False,
    )
    called, parts = _network_parts(network.model)
    memory = network.memory_mb
    prices = repr((settings.facts(), settings.profiles(None, 0.0)))
    return called, {
        **parts,
        "description": unstructure(description),
        "window": str(network.window),
        "channels": network.channels,
        "reduce": network.reduce,
        "statistics": network.statistics,
        "kept_maps": network.kept_maps,
        "memory": memory if memory is None or isinstance(memory, int) else [*memory],
        "prices": hashlib.sha256(prices.encode()).hexdigest(),
    }


def _network_parts(model: Any) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - as `MapNetwork.model`
    if is_named(model):
        return of_name(NamedModel.of(model))
    if isinstance(model, Path | str) and (is_network_file(model) or Path(model).is_file()):
        return of_file(Path(model))
    from serfer.module_digest import module_digest  # noqa: PLC0415 - only modules need it

    if not isinstance(model, Path | str):
        return type(model).__name__.lower(), {"module": module_digest(model), "training": model.training}
    path, _, factory = str(model).rpartition(":")
    if not path.endswith(".py"):
        return "network", {"name": str(model)}  # refused where its plan is made, with what it may have meant
    from serfer.splitter.network.source import call_factory  # noqa: PLC0415 - imports onnx

    return Path(path).stem, {
        "name": f"{Path(path).name}:{factory}",
        "module": module_digest(call_factory(Path(path), factory)),
        "file": _sha256(Path(path)),
    }


def _sha256(path: Path) -> str:
    try:
        return file_sha256(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', error)}") from error
