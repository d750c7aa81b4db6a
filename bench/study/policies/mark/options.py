"""MArk's settings, and how they are written: `mark:sl_min=0.99,m=100`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from serfer.core.dataclass_codec import Bounds
from serfer.core.errors import UsageError


@dataclass(frozen=True)
class MarkOptions:
    """The settings of sections 4.2 to 4.4; keys are the paper's letters.

    A unit lasts `unit_s` (P_u) and has samples of `sample_s` (P_s); `window` units (P_w) are forecast, and
    `lead_units` (tau) lie between a launch and the load that it is for: None is as many as the slowest type boots in.
    `cooldown_s` is how long an instance is kept that no plan wants. The monitor judges the last `monitor_queries` (M)
    by the share `slo_met` (SL_min), and launches `backups` (L; 0: never) of `backup_kind` (T; empty: the first type).
    Instances gather batches for `batch_window_ms` (W_batch); None is what the tuning of section 4.3 gives. The paper
    prints P_u, P_w, P_s, tau and SL_min, and neither M, L nor the cool-down.

    With `all_types` the scenario's other types are candidates too, with `spot` their spot prices; these are not written
    as KEY=VALUE. Burstable types are no candidates: with `spot` the first of them stands in for instances that are
    taken away. Raises UsageError for settings that do not go together.
    """

    forecaster: str = "seasonal"
    slo_met: Annotated[float, Bounds(0.0, 1.0)] = field(default=0.98, metadata={"key": "sl_min"})
    monitor_queries: Annotated[int, Bounds(1, 10_000_000)] = field(default=1000, metadata={"key": "m"})
    backups: Annotated[int, Bounds(0, 1000)] = field(default=1, metadata={"key": "l"})
    backup_kind: str = field(default="", metadata={"key": "t"})
    unit_s: Annotated[float, Bounds(1.0, 3600.0)] = field(default=60.0, metadata={"key": "p_u"})
    window: Annotated[int, Bounds(1, 512)] = field(default=60, metadata={"key": "p_w"})
    sample_s: Annotated[float, Bounds(0.1, 3600.0)] = field(default=5.0, metadata={"key": "p_s"})
    lead_units: Annotated[int, Bounds(1, 512)] | None = field(default=None, metadata={"key": "tau"})
    cooldown_s: Annotated[float, Bounds(0.0, 86_400.0)] = field(default=300.0, metadata={"key": "cool_down"})
    batch_window_ms: Annotated[float, Bounds(0.0, 60_000.0)] | None = field(default=None, metadata={"key": "w_batch"})
    all_types: bool = field(default=False, metadata={"written": False})
    spot: bool = field(default=False, metadata={"written": False})

    def __post_init__(self) -> None:
        if self.sample_s > self.unit_s:
            raise UsageError(f"mark: samples of p_s {self.sample_s:g} s do not fit a unit of p_u {self.unit_s:g} s")
        if self.lead_units is not None and self.lead_units > self.window:
            raise UsageError(f"mark: tau {self.lead_units} is beyond the forecast of p_w {self.window} units")
