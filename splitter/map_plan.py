"""Plans for images that no function holds: a network is computed window by window, as if on the whole image."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serfer.core.costs.aws import AwsFacts, shipped_aws
from serfer.core.costs.operator_costs import Profiles, shipped_profiles
from serfer.core.errors import PlanWarning, UsageError
from serfer.core.options import with_values
from serfer.core.plan import Plan
from serfer.extras import named_extras
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.map_plan_options import MapPlanOptions
from serfer.splitter.network.description import Description, Reduction
from serfer.splitter.plan_dir.output_directory import place_for
from serfer.splitter.planning.split_options import Budget, memory_choices, package_limit
from serfer.splitter.windows.wanted_sizes import AnySize, checked_sizes


def map_plan(  # noqa: PLR0913 - by name
    model: Any,  # noqa: ANN401 - an nn.Module, or a path as text
    sizes: Sequence[tuple[int, int]] | str,
    out: Path | str = "plan",
    *,
    store: str = "redis",
    limit_mb: int | None = None,
    dependency_bytes: int | Callable[[], int] = DEPENDENCY_ALLOWANCE,
    facts: AwsFacts | None = None,
    profiles: Profiles | None = None,
    progress: Callable[[str], None] | None = None,
    options: MapPlanOptions | None = None,
    **values: Any,  # noqa: ANN401 - of MapPlanOptions
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
        store: As `split`.
        limit_mb: As `split`.
        dependency_bytes: As `split`.
        facts: As `split`.
        profiles: As `split`.
        progress: As `split`.
        options: How the network becomes a plan.
        values: Fields of `serfer.MapPlanOptions` by name, in place of those of `options`: `reduce="argmax"`.

    Raises:
        ModelError: the network looks at the whole image otherwise than by statistics, as attention does; the message
            names the operator.
        UsageError: options that are unknown or contradict each other; passes that take more than "auto" allows, with
            what they cost.
        InputError: `out` cannot be a plan's place.
        WrongAnswerError: windows do not equal the whole.
    """
    place = place_for(Path(out), [Path(model)] if isinstance(model, Path | str) else [])
    chosen = with_values(MapPlanOptions, options, values)
    reduction = Reduction.of(chosen.reduce, None)
    description = Description.of(
        chosen.preprocess, chosen.labels, chosen.output, reduction, name=chosen.name, resized=False
    )
    if chosen.output is not None and description.boxes is None:
        raise UsageError(
            f"--output is boxes, of a detector: maps are reduced by --reduce, not by {chosen.output!r:.40}"
        )
    facts = facts or shipped_aws()
    facts.stores(store)  # refuses an unknown store
    memory, wanted_sizes = memory_choices(chosen.memory_mb, facts.functions), checked_sizes(sizes)
    if chosen.kept_maps == "always" and isinstance(wanted_sizes, AnySize):
        raise UsageError("a plan for images of any size keeps no maps: kept_maps=always takes --size HEIGHTxWIDTH")
    with named_extras():
        if callable(dependency_bytes):
            dependency_bytes = dependency_bytes()
        limit = package_limit(limit_mb, dependency_bytes, facts.functions)
        budget = Budget(limit, facts, memory, store, profiles=profiles or shipped_profiles())
        from serfer.splitter.network.source import channels_of  # noqa: PLC0415 - imports onnx and what optimises its graphs
        from serfer.splitter.windows.build import WindowRequest, build_map_plan  # noqa: PLC0415 - as above

        progress = progress or (lambda _step: None)
        side = None if chosen.window == "auto" else chosen.window
        wanted = WindowRequest(side, chosen.statistics, chosen.kept_maps)
        channels = chosen.channels or channels_of(model)
        plan, notes = build_map_plan(model, wanted_sizes, place, wanted, channels, budget, description, progress)
    for note in notes:
        warnings.warn(note, PlanWarning, stacklevel=2)
    return plan
