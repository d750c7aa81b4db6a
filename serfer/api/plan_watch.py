"""Whether plan directories still hold what is served of them: it is read when a service starts, and never again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from serfer.api.observability.logs import write
from serfer.core.errors import PlanError
from serfer.core.plan import Plan
from serfer.core.plan.layout import PLAN_FILE
from serfer.plan_directory import load_plan

_State = tuple[int, int, int]


class PlanWatch:
    """Logs a plan directory's change once: what is served of it stays the same until the service starts again."""

    def __init__(self, directories: Mapping[str, Path], plans: Mapping[str, Plan]) -> None:
        """`plans` are those that are served, by the models' names, as are their `directories`."""
        self._directories, self._plans = directories, plans
        self._seen: dict[str, _State] = {}

    def look(self) -> None:
        """Look at each plan.json, and read it where it is another file than at the last look; blocks."""
        for model, directory in self._directories.items():
            with suppress(OSError, PlanError):  # removed, or half copied: the next look may find more
                status = (directory / PLAN_FILE).stat()
                state = status.st_ino, status.st_size, status.st_mtime_ns
                if self._seen.get(model) != state:
                    self._compare(model, load_plan(directory))
                    self._seen[model] = state

    def _compare(self, model: str, plan: Plan) -> None:
        served = self._plans[model]
        if plan.digest != served.digest:
            what = f"its directory has another plan, {plan.digest[:12]}, than is served, {served.digest[:12]}"
        elif plan.description != served.description:
            what = "its plan was described again: images, labels or scores are served as they were before"
        else:
            return
        write(logging.WARNING, "restart to serve what has changed", {"model": model, "reason": what})
