"""Location of a function's weights and graphs in an environment: its own package, or a layer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from serfer.core.errors import PlanError
from serfer.core.plan import Function, Plan

IN_LAYER = "serfer_plan"
"""The directory of a layer's python/ that holds what lies in a plan directory, under the same names."""


def artefact_directory(plan: Plan, root: Path, entries: Iterable[str]) -> Path:
    """Return `root`, or `serfer_plan` in the first of the `entries` of a search path that has a function of the plan.

    Raises PlanError where none of them has one: other files, or files of other sizes, are not this plan's.
    """
    functions = [function for stage in plan.stages for function in stage.functions]
    for directory in (root, *(Path(entry) / IN_LAYER for entry in entries if entry)):
        if any(_holds(directory, function) for function in functions):
            return directory
    raise PlanError(
        f"neither {root} nor {IN_LAYER} in a layer has the weights and graphs of a function of the plan "
        f"{plan.digest[:12]}: package and deploy the plan again"
    )


def _holds(directory: Path, function: Function) -> bool:
    """Return whether a directory has a function's files, by names and sizes: digests take time in a cold start."""
    for artefact in (function.weights, *function.graphs):
        path = directory / artefact.path
        if not path.is_file() or path.stat().st_size != artefact.bytes:
            return False
    return True
