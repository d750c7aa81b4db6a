"""INFaaS' integer linear programme of scaling actions (4.2.1), solved by HiGHS.

    minimise   sum C (delta + lambda T_load max(delta, 0))
    subject to sum Q (N + delta) >= L + slack        (1)   the load is supported
               T_inf <= S where delta > 0            (2)   what is loaded meets the SLO
               sum R (N + delta) <= R_total          (3)   for each type of resource
               N + delta >= 0                        (4)

delta is `up` - `down`, two integers from 0: `up` is 0 where a variant misses the SLO, `down` at most N.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serfer.control.selection.scaling.records import (
    OPTIONS,
    InstanceCosts,
    LoadObservation,
    ScalingOptions,
    ScalingPlan,
    capacity,
    changed,
)
from serfer.core.errors import UnavailableError
from serfer.extras import named_extras

_INFEASIBLE: Final = 2
"""scipy's status of a programme without a solution."""
_ROUNDING: Final = 1e-6

Floats = npt.NDArray[np.float64]


class IntegerProgram:
    """Finds the cheapest scaling actions by the programme; it is NP-complete, so few variants, or minutes."""

    @named_extras()
    def __init__(self, variants: Sequence[InstanceCosts], options: ScalingOptions = OPTIONS) -> None:
        import scipy.optimize  # noqa: F401, PLC0415 - an extra, and slow to import

        self._variants = tuple(variants)
        self._options = options

    def observe(self, seen: LoadObservation) -> ScalingPlan:
        """Return the actions; where nothing supports the load, those that leave the least of it out."""
        wanted = seen.rate * self._options.slack_threshold - capacity(self._variants, seen.running)
        short = 0.0
        solution = self._solve(seen, self._costs(), wanted)
        if solution is None:
            short = max(0.0, wanted - self._most(seen))
            solution = self._solve(seen, self._costs(), wanted - short - _ROUNDING)
        if solution is None:
            raise UnavailableError("what runs takes more than there is, whatever is unloaded: correct the resources")
        count = len(self._variants)
        deltas = solution[:count] - solution[count:]
        changes = {each.name: int(delta) for each, delta in zip(self._variants, deltas, strict=True) if delta}
        return ScalingPlan(changes, _reason(seen, changes, short), short_qps=short)

    def _costs(self) -> Floats:
        usd = np.array([variant.usd_per_s for variant in self._variants])
        load = np.array([variant.load_s for variant in self._variants])
        return np.concatenate([usd * (1 + self._options.unpredictability * load), -usd])

    def _most(self, seen: LoadObservation) -> float:
        qps = np.array([variant.qps for variant in self._variants])
        solution = self._solve(seen, np.concatenate([-qps, qps]), None)
        return float(qps @ (solution[: len(qps)] - solution[len(qps) :])) if solution is not None else 0.0

    def _solve(self, seen: LoadObservation, costs: Floats, wanted: float | None) -> Floats | None:
        from scipy.optimize import Bounds, milp  # noqa: PLC0415 - as above

        running = np.array([seen.running.get(variant.name, 0) for variant in self._variants], dtype=float)
        meets = np.array([variant.latency_ms <= seen.slo_ms for variant in self._variants])
        upper = np.concatenate([np.where(meets, self._enough(seen), 0.0), running])
        constraints = self._constraints(seen, running, wanted)
        found = milp(
            costs / (np.abs(costs).max(initial=0.0) or 1.0),  # HiGHS' tolerances are absolute, 1e-6 and 1e-7
            integrality=np.ones(len(costs)),
            bounds=Bounds(0.0, upper),
            constraints=constraints or None,
            options={"mip_rel_gap": 0.0},
        )
        if found.status == _INFEASIBLE and "Model error" not in found.message:  # HiGHS refused it
            return None
        if found.x is None:
            raise UnavailableError(f"the integer programme was not solved: {found.message}")
        rounded: Floats = np.round(found.x)
        return rounded

    def _enough(self, seen: LoadObservation) -> Floats:
        wanted = seen.rate * self._options.slack_threshold
        return np.ceil(wanted / np.array([variant.qps for variant in self._variants])) + 1

    def _constraints(self, seen: LoadObservation, running: Floats, wanted: float | None) -> list[Any]:
        from scipy.optimize import LinearConstraint  # noqa: PLC0415 - as above

        constraints = []
        if wanted is not None:
            qps = np.array([each.qps for each in self._variants])
            constraints.append(LinearConstraint(np.concatenate([qps, -qps])[None, :], lb=wanted))
        for kind, total in sorted(seen.available.items()):
            each = np.array([variant.resources.get(kind, 0.0) for variant in self._variants])
            constraints.append(LinearConstraint(np.concatenate([each, -each])[None, :], ub=total - each @ running))
        return constraints


def _reason(seen: LoadObservation, changes: dict[str, int], short: float) -> str:
    if short > 0:
        return f"{seen.rate:g} queries/s, {short:g} more than there is room for"
    if not changes:
        return f"{seen.rate:g} queries/s are supported by what runs"
    total = sum(changed(seen.running, changes).values())
    return f"{seen.rate:g} queries/s take {total} instances at the least cost"
