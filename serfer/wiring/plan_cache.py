"""Plans in the cache: made once, by one of the processes that want one, and made again where its files were altered."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serfer.build_cache import assembled, cache_of, in_use
from serfer.core.errors import PlanError
from serfer.doctor.accounts import quotas_for
from serfer.files import locked
from serfer.plan_directory import check_artefacts, load_plan
from serfer.settings import Settings

PLANS = "plans"
"""The folder of plans in the cache."""


def planned_for(settings: Settings) -> dict[str, Any]:
    """Return the account, prices and operator profiles that plans in the cache are for: those of `serfer split`."""
    facts = settings.facts()
    return {"account": quotas_for(settings, None), "facts": facts, "profiles": settings.profiles()}


def cached_plan(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return the directory of a plan in the cache, which `make` writes into an empty directory where it is not there.

    A cache that cannot be written serves the plans that it has. Raises UnavailableError where it cannot be used.
    """
    target = cache / PLANS / name
    with cache_of(cache):
        if not _is_kept(target):
            target.parent.mkdir(0o755, parents=True, exist_ok=True)
            with locked(target.with_name(f".serfer-{name}.lock")):
                if not _is_kept(target):
                    shutil.rmtree(target, ignore_errors=True)
                    with assembled(target) as directory:
                        make(directory)
    return target


def _is_kept(target: Path) -> bool:
    if not in_use(target):
        return False
    try:
        check_artefacts(load_plan(target), target)
    except PlanError:
        return False
    return True
