"""Plans for images that no function holds: a network is computed window by window, as if on the whole image."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serfer.core.costs.aws import AwsFacts, shipped_aws
from serfer.core.costs.operator_costs import Profiles, shipped_profiles
from serfer.core.errors import PlanWarning, UsageError
from serfer.core.plan import Plan, Preprocess
from serfer.extras import named_extras
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.network.description import Description, Reduction
from serfer.splitter.plan_dir.output_directory import place_for
from serfer.splitter.planning.split_options import Budget, memory_choices, package_limit
from serfer.splitter.windows.wanted_sizes import AnySize, checked_sizes

STATISTICS = ("auto", "exact")
"""Whether passes for statistics over the whole image may take any time, or only a few times the map's."""
KEPT_MAPS = ("auto", "always", "never")
"""Whether passes keep maps for later ones: where that is cheaper, wherever less is computed so, or nowhere."""


def map_plan(  # noqa: PLR0913 - what a user may choose, each with a default
    model: Any,  # noqa: ANN401 - an nn.Module, or a path as text
    sizes: Sequence[tuple[int, int]] | str,
    out: Path | str = "plan",
    *,
    window: int | str = "auto",
    channels: int = 3,
    reduce: str | None = None,
    output: str | None = None,
    statistics: str = "auto",
    kept_maps: str = "auto",
    store: str = "redis",
    memory_mb: int | Sequence[int] | None = None,
    limit_mb: int | None = None,
    dependency_bytes: int | Callable[[], int] = DEPENDENCY_ALLOWANCE,
    preprocess: Preprocess | Path | str | None = None,
    labels: Sequence[str] | Path | str = (),
    name: str | None = None,
    facts: AwsFacts | None = None,
    profiles: Profiles | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Write a map plan: for images of some sizes, or any, that are computed window by window (`serfer.map`).

    The result of all windows is the network's on the whole image: windows read exactly what their pixels depend on, and
    padding stands only where the image ends (docs/how-to/map.md). One function computes all windows; its weights are in
    its zip where they fit, else fetched. Warns (PlanWarning) where the check says little.

    Args:
        model: An nn.Module in evaluation mode, "module.py:factory", "timm:NAME" or "torchvision:NAME" (or a
            `NamedModel`), or the path of an ONNX file whose height and width are free. It makes
            maps of an image, (N, C, H, W) or (N, H, W), perhaps of several strides. It looks at neighbourhoods, and of
            the whole image at statistics alone (global and pyramid pooling, squeeze-and-excite, group and instance
            norm), where it makes one map.
        sizes: (height, width) of the images; or "any", or "any,multiple=8" for sizes that are multiples of 8 pixels.
        out: The plan directory; an empty directory or a plan there is replaced.
        window: The side of windows in pixels of the result, of several the finest, a multiple of the network's stride,
            or "auto": the cheapest for a pixel that functions of `memory_mb` hold.
        channels: Of an image.
        reduce: "argmax", "softmax" or "sigmoid", over the channels of the map; "argmax" makes its results a hundredth
            as large. Of a network with several outputs "NAME=argmax" and so on.
        output: "boxes", with a family and thresholds as `split` has them, for a detector: maps of it are boxes of the
            whole image (docs/how-to/detect.md). A file whose metadata say so needs none.
        statistics: Over the whole image, where the network has such: "exact", added up in passes over the image before
            the map; or "auto", the same where all passes take at most three times the multiply-accumulates of the map
            alone.
        kept_maps: Whether passes keep maps on the disk of the process that maps, for later ones, which read them in
            place of the image: "auto", where the cost model says that this is cheaper than computing them again;
            "always", wherever less is computed so; or "never".
        store: As `split`.
        memory_mb: What functions get, or several to choose from.
        limit_mb: As `split`.
        dependency_bytes: As `split`.
        preprocess: As `split`.
        labels: As `split`.
        name: As `split`.
        facts: As `split`.
        profiles: As `split`.
        progress: As `split`.

    Raises:
        ModelError: the network looks at the whole image otherwise than by statistics, as attention does; the message
            names the operator.
        UsageError: options that are unknown or contradict each other; passes that take more than "auto" allows, with
            what they cost.
        InputError: `out` cannot be a plan's place.
        WrongAnswerError: windows do not equal the whole.
    """
    place = place_for(Path(out), [Path(model)] if isinstance(model, Path | str) else [])
    description = Description.of(preprocess, labels, output, Reduction.of(reduce, None), name=name, resized=False)
    if output is not None and description.boxes is None:
        raise UsageError(f"--output is boxes, of a detector: maps are reduced by --reduce, not by {output!r:.40}")
    facts = facts or shipped_aws()
    facts.stores(store)  # refuses an unknown store
    memory, side, wanted_sizes = memory_choices(memory_mb, facts.functions), window_side(window), checked_sizes(sizes)
    _check_choice("--statistics", statistics, STATISTICS)
    _check_choice("--kept-maps", kept_maps, KEPT_MAPS)
    if kept_maps == "always" and isinstance(wanted_sizes, AnySize):
        raise UsageError("a plan for images of any size keeps no maps: --kept-maps always takes --size HEIGHTxWIDTH")
    with named_extras():
        if callable(dependency_bytes):
            dependency_bytes = dependency_bytes()
        limit = package_limit(limit_mb, dependency_bytes, facts.functions)
        budget = Budget(limit, facts, memory, store, profiles=profiles or shipped_profiles())
        from serfer.splitter.windows.build import WindowRequest, build_map_plan  # noqa: PLC0415 - imports onnx and what optimises its graphs

        progress = progress or (lambda _step: None)
        wanted = WindowRequest(side, statistics, kept_maps)
        plan, notes = build_map_plan(model, wanted_sizes, place, wanted, channels, budget, description, progress)
    for note in notes:
        warnings.warn(note, PlanWarning, stacklevel=2)
    return plan


def _check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UsageError(f"{option} is {', '.join(choices[:-1])} or {choices[-1]}, not {value!r:.40}")


def window_side(window: int | str) -> int | None:
    """Read the `window` argument: a number, or None for "auto"; raises UsageError."""
    if window == "auto":
        return None
    if isinstance(window, bool) or not (isinstance(window, int) or str(window).isdecimal()) or int(window) < 1:
        raise UsageError(f'window must be "auto" or a number of pixels, not {window!r}')
    return int(window)
