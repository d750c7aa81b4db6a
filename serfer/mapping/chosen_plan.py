"""The plan by which images are mapped: the one that was given, or that of a network, which is made and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from serfer.core.errors import SerferError, UsageError
from serfer.mapping.map_network import KeptMapPlan, MapNetwork, Size, kept_map_plan
from serfer.raster import open_raster
from serfer.settings import Settings


def chosen_plan(
    plan: Path | str | None,
    network: Any,  # noqa: ANN401 - as `MapNetwork.model`, or one
    images: Callable[[], Sequence[str]],
    settings: Settings,
    *,
    deployed: bool,
    progress: Callable[[str], None] = lambda _step: None,
) -> KeptMapPlan:
    """Return a plan that was given, or that of a network for images of any size, or else for those of the `images`.

    Raises UsageError where both or neither was given, and for functions that are `deployed`, which a network has none
    of; else as `kept_map_plan`.
    """
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
