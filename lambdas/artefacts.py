"""Location of a function's weights and graphs in an environment: its package, or a layer; or weights are fetched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from serfer.core.errors import PlanError
from serfer.core.plan import Artefact, Function, Plan

IN_LAYER = "serfer_plan"
"""The directory of a layer's python/ that holds what lies in a plan directory, under the same names."""


def artefact_directory(plan: Plan, root: Path, entries: Iterable[str]) -> Path:
    """Return `root`, or `serfer_plan` in the first of the `entries` of a search path that has a function of the plan.

    Raises PlanError where none of them has one: other files, or files of other sizes, are not this plan's.
    """
    for directory in (root, *(Path(entry) / IN_LAYER for entry in entries if entry)):
        if any(
            _holds(directory, function.graphs if stage.fetches else function.files)
            for stage in plan.stages
            for function in stage.functions
        ):
            return directory
    raise PlanError(
        f"neither {root} nor {IN_LAYER} in a layer has the weights and graphs of a function of the plan "
        f"{plan.digest[:12]}: package and deploy the plan again"
    )


def functions_in(plan: Plan, directory: Path) -> list[tuple[int, int]]:
    return [place for place in plan.functions if _holds(directory, plan.packaged(*place))]


def functions_to_fetch(plan: Plan, directory: Path) -> list[Function]:
    """Return the parts, for each of its stages, of the function in a directory whose weights are not there."""
    return [
        part
        for place in functions_in(plan, directory)
        if not _holds(directory, plan.fetched(*place))
        for part in plan.parts(*place)
    ]


def _holds(directory: Path, artefacts: Iterable[Artefact]) -> bool:
    """Return whether a directory has files, by names and sizes: digests take time in a cold start."""
    for artefact in artefacts:
        path = directory / artefact.path
        if not path.is_file() or path.stat().st_size != artefact.bytes:
            return False
    return True
