"""When worker machines are added: the three triggers of INFaaS' VM-Autoscaler (4.2.3).

The paper brings workers down, too, but has no rule for it: the provisioning policies have (serfer/control/policies).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from serfer.core.variants import VariantState

UTILISATION: Final = 0.8
"""The utilisation of a resource above which a worker is full."""
_OVERLOADED: Final = 0.8  # the share of workers with overloaded variants above which one is added
_BUSY: Final = frozenset({VariantState.OVERLOADED, VariantState.INTERFERED})


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """A worker: its type of hardware, the utilisation of each resource, and the states of the variants it has loaded.

    One that `boots` has nothing loaded yet.
    """

    name: str
    kind: str
    utilisation: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, VariantState] = field(default_factory=dict)
    boots: bool = False


def plan_workers(workers: Sequence[WorkerObservation]) -> dict[str, str]:
    """Return the types of which a worker is to be added, each with the reason; none of which one boots already."""
    serving = [worker for worker in workers if not worker.boots]
    booting = {worker.kind for worker in workers if worker.boots}
    add: dict[str, str] = {}
    for kind, reason in (*_full(serving), *_disturbed(serving), *_overloaded(serving)):
        if kind not in booting:
            add.setdefault(kind, reason)
    return add


def _full(workers: Sequence[WorkerObservation]) -> list[tuple[str, str]]:
    """Return the types all of whose workers use more of a resource than the threshold (trigger 1)."""
    found = []
    for kind in _kinds(workers):
        mine = [worker for worker in workers if worker.kind == kind]
        resources = sorted(set.intersection(*(set(worker.utilisation) for worker in mine)))
        for resource in resources:
            if all(worker.utilisation[resource] > UTILISATION for worker in mine):
                found.append((kind, f"all {kind} workers use more than {UTILISATION:.0%} of {resource}"))
                break
    return found


def _disturbed(workers: Sequence[WorkerObservation]) -> list[tuple[str, str]]:
    """Trigger 2 (6.3.1). Of a type without a loaded variant nothing is known."""
    found = []
    for kind in _kinds(workers):
        states = [state for worker in workers if worker.kind == kind for state in worker.states.values()]
        loaded = [state for state in states if state != VariantState.INACTIVE]
        if VariantState.INTERFERED in loaded and all(state in _BUSY for state in loaded):
            found.append((kind, f"every variant on {kind} is interfered or overloaded"))
    return found


def _overloaded(workers: Sequence[WorkerObservation]) -> list[tuple[str, str]]:
    """Trigger 3. The paper does not say of which type the worker is: here of the one with most overloaded variants."""
    kinds = Counter(
        worker.kind for worker in workers for state in worker.states.values() if state == VariantState.OVERLOADED
    )
    having = sum(VariantState.OVERLOADED in worker.states.values() for worker in workers)
    if not kinds or having <= _OVERLOADED * len(workers):
        return []
    kind = min(kinds, key=lambda kind: (-kinds[kind], kind))
    return [(kind, f"{having} of {len(workers)} workers have overloaded variants, most of them {kind}")]


def _kinds(workers: Sequence[WorkerObservation]) -> list[str]:
    return sorted({worker.kind for worker in workers})
