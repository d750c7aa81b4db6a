"""explanation.json: what people and planners read of a plan, and no worker or driver needs to answer.

Sentences, what the plan competed with, what it changed, predicted milliseconds and dollars. The plan's digest does not
cover them, so new words or prices rename no function and no key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

from serfer.core.dataclass_codec import Bounds, structure, unstructure
from serfer.core.errors import PlanError
from serfer.core.plan.codec import OF_PLAN
from serfer.core.plan.layout import EXPLANATION_FILE
from serfer.core.plan.model import (
    PREDICTED,
    Alternative,
    DeploymentOption,
    ModelChange,
    PackageLimit,
    Plan,
    Stage,
    explained,
)

_Figure = Annotated[float, Bounds(0.0)]


@dataclass(frozen=True, slots=True)
class _GangFigures:
    predicted_ms: _Figure
    predicted_usd: _Figure


@dataclass(frozen=True, slots=True)
class _StageFigures:
    predicted_ms: _Figure
    predicted_usd: _Figure
    tiles: tuple[tuple[_Figure, _Figure], ...]


@dataclass(frozen=True, slots=True)
class _Explanation:
    plan: str
    store: str
    why: str
    limit: PackageLimit
    changes: tuple[ModelChange, ...]
    ways: tuple[DeploymentOption, ...]
    alternatives: tuple[Alternative, ...]
    stages: tuple[_StageFigures, ...]
    gangs: tuple[_GangFigures, ...]
    cold_share: Annotated[float, Bounds(0.0, 1.0)] | None = None
    times: str = PREDICTED


def dump_explanation(plan: Plan) -> str:
    """Write the text of a plan's explanation.json; raises PlanError for a plan that was read without one."""
    value = _Explanation(
        plan=plan.digest,
        store=plan.store,
        why=plan.why,
        limit=explained(plan.limit),
        changes=plan.changes,
        ways=plan.ways,
        alternatives=plan.alternatives,
        cold_share=plan.cold_share,
        times=plan.times,
        stages=tuple(_figures(stage) for stage in plan.stages),
        gangs=tuple(_GangFigures(explained(gang.predicted_ms), explained(gang.predicted_usd)) for gang in plan.gangs),
    )
    return json.dumps(unstructure(value), indent=1, ensure_ascii=False) + "\n"


def with_explanation(plan: Plan, text: str, where: str = EXPLANATION_FILE) -> Plan:
    """Return a plan with what its explanation.json says, which may say more.

    Raises PlanError by the name `where` for one that is damaged or another plan's.
    """
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{where} is not JSON ({error}); delete it, or split the model again") from error
    found = structure(_Explanation, value, where, lenient=True)
    tiles = [len(stage.tiles) for stage in found.stages]
    own = [len(stage.tiles) for stage in plan.stages]
    if (found.plan, tiles, len(found.gangs)) != (plan.digest, own, len(plan.gangs)):
        raise PlanError(f"{where} is of another plan than plan.json beside it; delete it, or split the model again")
    if not 0 <= found.limit.dependencies <= found.limit.package:
        raise PlanError(f"{where} has a limit of packages that is less than its dependencies, or than nothing")
    return replace(
        plan,
        stages=tuple(map(_with_figures, plan.stages, found.stages)),
        gangs=tuple(
            replace(gang, predicted_ms=figures.predicted_ms, predicted_usd=figures.predicted_usd)
            for gang, figures in zip(plan.gangs, found.gangs, strict=True)
        ),
        **{name: getattr(found, name) for name in OF_PLAN},
    )


def _figures(stage: Stage) -> _StageFigures:
    return _StageFigures(
        explained(stage.predicted_ms),
        explained(stage.predicted_usd),
        tuple((explained(tile.serial_ms), explained(tile.parallel_ms)) for tile in stage.tiles),
    )


def _with_figures(stage: Stage, figures: _StageFigures) -> Stage:
    return replace(
        stage,
        predicted_ms=figures.predicted_ms,
        predicted_usd=figures.predicted_usd,
        tiles=tuple(
            replace(tile, serial_ms=serial, parallel_ms=parallel)
            for tile, (serial, parallel) in zip(stage.tiles, figures.tiles, strict=True)
        ),
    )
