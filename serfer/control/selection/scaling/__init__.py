"""Case II, the load changes: which variants to replicate, upgrade to or unload, and when to add workers (INFaaS, 4.2).

LoadObservation (a slot) ──► Scaler: GreedyScaler ──────────────────► ScalingPlan
WorkerObservation of each ─► plan_workers ──────────────────────────► WorkerPlan

FleetScaler (fleet.py) applies both to instances that hold variants of several applications, and bounds them by worth.
"""

from __future__ import annotations

from serfer.control.selection.scaling.greedy import GreedyScaler
from serfer.control.selection.scaling.records import (
    OPTIONS,
    InstanceCosts,
    LoadObservation,
    Scaler,
    ScalingOptions,
    ScalingPlan,
    action_cost,
    capacity,
    changed,
    has_room,
)
from serfer.control.selection.scaling.workers import (
    WORKERS,
    WorkerObservation,
    WorkerPlan,
    WorkerThresholds,
    plan_workers,
)

__all__ = [
    "OPTIONS",
    "WORKERS",
    "GreedyScaler",
    "InstanceCosts",
    "LoadObservation",
    "Scaler",
    "ScalingOptions",
    "ScalingPlan",
    "WorkerObservation",
    "WorkerPlan",
    "WorkerThresholds",
    "action_cost",
    "capacity",
    "changed",
    "has_room",
    "plan_workers",
]
