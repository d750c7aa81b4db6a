"""What a policy did on a cluster, in numbers: served, wasted, fragmented, paid."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from serfer.core.units import MS_PER_S
from serfer.cost.windows import Window
from serfer_bench.study.policies.infless.scenario import ClusterScenario
from serfer_bench.study.sim.cluster.queues import Counters
from serfer_bench.study.sim.cluster.run import ClusterRun

_S_PER_HOUR: Final = 3600.0


@dataclass(frozen=True)
class FunctionOutcome:
    """A function's requests, each met (within the SLO), late or dropped; latencies of those looked at one by one."""

    name: str
    slo_ms: float
    requests: int
    met: int
    late: int
    dropped: int
    cold_starts: int
    p50_ms: float | None
    p99_ms: float | None
    batches: dict[int, float]


@dataclass(frozen=True)
class ClusterOutcome:
    """A policy's run.

    Resources are units of beta * cores + percent of GPUs. `requests_per_unit_s` is what was answered in time, for each
    second of a unit that was occupied; `idle_share` is the part of occupied unit-seconds in which no batch ran;
    `fragments` is the part of active servers' units that no instance has, on average. `usd` pays for occupied cores and
    GPUs (Table 4's way), `servers_usd` for servers with an instance. `wait_ms` and `exec_ms` are means, and, as
    latencies, of the requests that were looked at one by one: `detailed_requests`.
    """

    policy: str
    scenario: str
    seed: int
    period_s: float
    seconds: float
    requests: int
    met: int
    late: int
    dropped: int
    violations: float
    cold_starts: int
    requests_per_unit_s: float
    cores_per_100_rps: float
    gpus_per_100_rps: float
    usd: float
    usd_per_request: float | None
    servers_usd: float
    unit_hours: float
    idle_share: float
    fragments: float
    active_servers: float
    instances: float
    peak_instances: int
    unplaced: float
    detailed_requests: int
    wait_ms: float | None
    exec_ms: float | None
    batches: dict[int, float]
    functions: tuple[FunctionOutcome, ...]
    windows: tuple[Window, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def outcome_of(scenario: ClusterScenario, scenario_name: str, run: ClusterRun, seed: int) -> ClusterOutcome:
    counters, line, load = run.counters, run.timeline, run.load
    met = sum(one.met for one in counters)
    requests = sum(one.requests for one in counters)
    late, dropped = sum(one.late for one in counters), sum(one.dropped for one in counters)
    unit_s = float(line.units.sum()) * load.period_s
    core_h = float(line.cores.sum()) * load.period_s / _S_PER_HOUR
    gpu_h = float(line.gpus.sum()) * load.period_s / _S_PER_HOUR
    usd = core_h * scenario.cluster.usd_per_core_hour + gpu_h * scenario.cluster.usd_per_gpu_hour
    per_100 = 100.0 * _S_PER_HOUR / met if met else 0.0
    busy = sum(one.busy_unit_s for one in counters)
    shown = [sum(one.latencies) for one in counters]
    active = line.active_servers > 0
    return ClusterOutcome(
        policy=run.policy,
        scenario=scenario_name,
        seed=seed,
        period_s=load.period_s,
        seconds=load.seconds,
        requests=requests,
        met=met,
        late=late,
        dropped=dropped,
        violations=(late + dropped) / requests if requests else 0.0,
        cold_starts=sum(one.launches for one in counters),
        requests_per_unit_s=met / unit_s if unit_s else 0.0,
        cores_per_100_rps=core_h * per_100,
        gpus_per_100_rps=gpu_h * per_100,
        usd=usd,
        usd_per_request=usd / met if met else None,
        servers_usd=float(line.usd.sum()) * load.period_s / _S_PER_HOUR,
        unit_hours=unit_s / _S_PER_HOUR,
        idle_share=max(0.0, 1 - busy / unit_s) if unit_s else 0.0,
        fragments=float(line.fragments[active].mean()) if active.any() else 0.0,
        active_servers=float(line.active_servers.mean()),
        instances=float(line.instances.mean()),
        peak_instances=int(line.instances.max()),
        unplaced=float(line.unplaced.sum()) * load.period_s,
        detailed_requests=load.looked_at,
        wait_ms=_mean_ms(sum(one.wait_s for one in counters), sum(shown)),
        exec_ms=_mean_ms(sum(one.exec_s for one in counters), sum(shown)),
        batches=_shares(sum((one.batches for one in counters), Counter[int]())),
        functions=tuple(
            _function(spec.name, spec.slo_ms, one) for spec, one in zip(scenario.functions, counters, strict=True)
        ),
        windows=load.windows,
    )


def _function(name: str, slo_ms: float, one: Counters) -> FunctionOutcome:
    p50, p99 = (None if (found := one.quantile(share)) is None else found * slo_ms for share in (0.5, 0.99))
    return FunctionOutcome(
        name, slo_ms, one.requests, one.met, one.late, one.dropped, one.launches, p50, p99, _shares(one.batches)
    )


def _mean_ms(seconds: float, count: int) -> float | None:
    return seconds / count * MS_PER_S if count else None


def _shares(batches: Counter[int]) -> dict[int, float]:
    total = sum(batches.values())
    return {size: float(np.round(count / total, 6)) for size, count in sorted(batches.items())} if total else {}
