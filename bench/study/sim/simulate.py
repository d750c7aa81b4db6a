"""Policies run on a load: the cost over all of it, against the clairvoyant optimum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from serfer.control.policies import make_policy, serves_alone
from serfer.control.policy import Policy
from serfer.control.router import Router
from serfer.control.scenario import S_PER_HOUR, Scenario
from serfer.core.errors import InputError, UsageError
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.fleet import Purchase, SpotLosses, check_peak
from serfer.cost.loads.access_logs import is_access_log
from serfer.cost.loads.lines import LoadFile, opened
from serfer.cost.loads.reading import BYTE_ORDER_MARK, KINDS, load_name, parse_load
from serfer.cost.loads.steps import PERIOD_S, Progress, check_period, silent
from serfer.cost.loads.trace import MAX_BYTES, Floats, Trace, is_trace
from serfer.cost.queries import QueriesResult, QueriesRun, warm_up_s
from serfer.cost.service_times import ServiceTimes
from serfer.cost.windows import HOUR_S, Window, windows_of
from serfer_bench.study.loads.catalogue import catalogue
from serfer_bench.study.loads.cloudwatch import is_cloudwatch_csv, read_cloudwatch_csv, read_cloudwatch_json
from serfer_bench.study.loads.generators import GENERATORS, generate, is_generator
from serfer_bench.study.loads.scaling import scale_factor, without_zeros
from serfer_bench.study.policies.clairvoyant import optimum_usd
from serfer_bench.study.sim.calibration import Calibration
from serfer_bench.study.sim.history import place_before, see_history
from serfer_bench.study.sim.rates import RatesResult, run_rates
from serfer_bench.study.sim.tasks import TasksRun
from serfer_bench.study.sim.time_series import rates_usd

_MS = 1000.0
_NEAR = 0.05  # up to which dollars query by query count as those of the level of rates
_KINDS: Final = f"{KINDS}; CloudWatch's JSON or CSV of a Sum"


def read_load(path: Path, progress: Callable[[str], None]) -> Trace:
    with opened(path) as file:
        load = _read_cloudwatch(file) or parse_load(file, progress, kinds=_KINDS)
    return replace(load, name=load_name(path))


def _read_cloudwatch(file: LoadFile) -> Trace | None:
    first = file.first.removeprefix(BYTE_ORDER_MARK)
    if first.startswith(b"{"):
        return read_cloudwatch_json(file.path, file.text(MAX_BYTES))
    if b"," not in first or is_trace(first) or is_access_log(file.head):
        return None
    text = file.text(MAX_BYTES)
    return read_cloudwatch_csv(file.path, text) if is_cloudwatch_csv(text) else None


@dataclass(frozen=True)
class LoadSpec:
    """The source of a load: a file or a generator with its parameters, and the part of it to use, in seconds."""

    name: str
    from_s: float = 0.0
    until_s: float = math.inf
    skip_zeros_over_s: float = math.inf

    @property
    def is_seeded(self) -> bool:
        """Whether another seed makes another load: not of a file, nor of a generator whose seed is given."""
        return is_generator(self.name) and "seed=" not in self.name

    def read(self, seed: int | None = None, progress: Progress = silent) -> Trace:
        trace = self._whole(seed, progress)
        if self.from_s or self.until_s < math.inf:
            trace = trace.cut(self.from_s, self.until_s)
        return without_zeros(trace, self.skip_zeros_over_s) if self.skip_zeros_over_s < math.inf else trace

    def _whole(self, seed: int | None, progress: Progress) -> Trace:
        if is_generator(self.name):
            if seed is None or not self.is_seeded:
                return generate(self.name)
            return generate(f"{self.name}{',' if ':' in self.name else ':'}seed={seed}")
        path = Path(self.name)
        if not path.exists() and not path.suffix:
            raise InputError(f"{self.name[:80]!r} is neither a file nor a generator: those are {', '.join(GENERATORS)}")
        if path.stem in catalogue() and not path.exists():
            raise InputError(f"{path} is not there: serfer study fetch-traces {path.stem} --out {path.parent}")
        return read_load(path, progress)


@dataclass(frozen=True)
class RunOptions:
    """Options of a policy's run: it decides every `period_s`; the dollars of any hour are at most `max_usd_per_hour`.

    `kind` names the instance type to use, None for the first; `spot` pays its spot price. Each spot instance is taken
    away `spot_losses_per_hour` times an hour on average. Without `overflow`, and by
    policies that serve alone, Lambda is not used: queries beyond the instances' capacity are late, or refused where
    none serves, and cost nothing, so that the cost cannot be compared with the optimum. `history`
    is a load that policies begin with, scaled as the load is.
    """

    period_s: float = PERIOD_S
    max_usd_per_hour: float = math.inf
    kind: str | None = None
    spot: bool = False
    overflow: bool = True
    spot_losses_per_hour: float = 0.0
    history: Trace | None = None

    def __post_init__(self) -> None:
        check_period(self.period_s)

    def losses(self, seed: int) -> SpotLosses:
        return SpotLosses(self.spot_losses_per_hour, seed, on_demand=self.spot)

    def new_policy(self, name: str, scenario: Scenario, factor: float) -> Policy:
        policy = make_policy(name, scenario)
        if self.history is not None:
            see_history(policy, scenario, self.history.scaled(factor), period_s=self.period_s)
        return policy

    def applied(self, scenario: Scenario) -> Scenario:
        kinds = scenario.instances
        chosen = next((one for one in kinds if self.kind in (None, one.name)), None)
        if chosen is None:
            raise UsageError(
                f"--instance {self.kind}: the scenario has {', '.join(one.name for one in scenario.instances)}"
            )
        if self.spot:
            if not chosen.spot_usd_per_hour:
                raise UsageError(f"--spot: {chosen.name} has no spot price in the scenario")
            chosen = replace(chosen, usd_per_hour=chosen.spot_usd_per_hour)
        return replace(scenario, instances=(chosen, *(one for one in kinds if one.name != chosen.name)))


@dataclass(frozen=True)
class Latencies:
    """Quantiles of latency in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, milliseconds: Floats) -> Latencies:
        return cls(*(float(value) for value in np.quantile(milliseconds, (0.5, 0.95, 0.99))))


@dataclass(frozen=True)
class WindowOutcome(Window):
    """A window query by query: the router spends `window_usd`, where the level of rates has `rates_usd`."""

    window_usd: float
    rates_usd: float
    slo_met: float | None
    latency_ms: Latencies | None


@dataclass(frozen=True)
class Outcome:
    """The cost of a policy and its quality of service; fields that were not simulated are None.

    Dollars and launches are those of the whole load, at the level of rates; `pings_usd`, a part of `serverless_usd`,
    started environments that the policy wanted warm; `ratio` is `cost_usd` over `optimum_usd`.
    Both are None where they cannot be compared, for the reasons in `warnings`: load that was refused or is late costs
    nothing, and an instance whose `qps` is not what its batches sustain costs the router something else. From `slo_met`
    to `throttled` they are those of its busiest and median hour, and so are `window_usd`, what the router spends there
    query by query, and `window_ratio`, that over what the level of rates has for these hours; `notes` say why. In these
    hours drivers repeated `retries` invocations that Lambda had throttled, `queued` ones waited for a slot, and
    `hedges` duplicated what was late, for `hedges_usd`, a part of `window_usd`.
    """

    policy: str
    queries: float
    cost_usd: float
    serverless_usd: float
    instances_usd: float
    optimum_usd: float | None
    ratio: float | None
    slo_met: float | None
    latency_ms: Latencies | None
    launches: int
    cold_starts: int | None
    idle_gb_s: float | None
    batches: int | None
    throttled: int | None
    refused: float
    late: float
    min_billing_usd: float
    booting_usd: float
    instance_hours: float
    scenario: str
    trace: str
    scale: str
    factor: float
    seed: int
    period_s: float
    windows: tuple[WindowOutcome, ...]
    warnings: tuple[str, ...] = ()
    window_usd: float | None = None
    window_ratio: float | None = None
    notes: tuple[str, ...] = ()
    history: str | None = None
    retries: int | None = None
    queued: int | None = None
    hedges: int | None = None
    hedges_usd: float | None = None
    pings_usd: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def policy_names(names: Sequence[str], scenario: Scenario) -> list[str]:
    for name in names:
        make_policy(name, scenario)
    return list(dict.fromkeys(names))


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """The outcome of a policy, its run over the whole load, and those of windows query by query.

    In `scenario` the instance type that was started comes first, at the price that was paid.
    """

    outcome: Outcome
    scenario: Scenario
    run: RatesResult
    windows: tuple[QueriesResult, ...]


@dataclass(frozen=True, eq=False)
class DetailedRun:
    """The options of simulation query by query: Lambda's service times and the windows' length.

    With `tasks`, Lambda's queries are simulated task by task. `limits` are what drivers and Lambda allow.
    """

    services: ServiceTimes
    window_s: float = HOUR_S
    tasks: Calibration | None = None
    limits: DriverLimits = field(default_factory=DriverLimits)

    def run(
        self, router: Router, launches: Sequence[tuple[float, Purchase]], seed: int, losses: SpotLosses | None = None
    ) -> QueriesRun:
        if self.tasks:
            return TasksRun(router.scenario, router, self.tasks, launches, seed, losses, self.limits)
        return QueriesRun(router.scenario, router, self.services, launches, seed, losses, self.limits)


@dataclass(frozen=True, eq=False)
class SimInput:
    """A load in a scenario: the scaled trace, and the cost of the clairvoyant optimum."""

    trace: Trace
    scenario_name: str
    scenario: Scenario
    scale: str
    factor: float
    optimum_usd: float


def prepare(trace: Trace, name: str, scenario: Scenario, scale: str) -> SimInput:
    factor = scale_factor(scale, trace, scenario)
    scaled = trace.scaled(factor)
    check_peak(scaled, scenario)
    optimum = optimum_usd(scenario, scaled.durations_s.tolist(), scaled.rates.tolist())
    return SimInput(scaled, name, scenario, scale, factor, optimum)


def run_policies(
    sim_input: SimInput,
    policies: Sequence[str],
    options: RunOptions,
    seed: int = 0,
    detailed: DetailedRun | None = None,
    progress: Progress = silent,
) -> Iterator[PolicyRun]:
    for name in policies:
        yield run_seeds(sim_input, name, options, (seed,), detailed, progress)[0]


def run_seeds(
    sim_input: SimInput,
    policy: str,
    options: RunOptions,
    seeds: Sequence[int],
    detailed: DetailedRun | None = None,
    progress: Progress = silent,
) -> list[PolicyRun]:
    scenario = options.applied(sim_input.scenario)
    check_peak(sim_input.trace, scenario)
    if options.history is not None:
        check_peak(options.history.scaled(sim_input.factor), scenario)
        options = replace(options, history=place_before(sim_input.trace, options.history))
    windows = windows_of(sim_input.trace, detailed.window_s) if detailed else ()
    marks = {window: max(0.0, window.begin_s - warm_up_s(scenario)) for window in windows}
    made = options.new_policy(policy, scenario, sim_input.factor)
    run = run_rates(
        sim_input.trace,
        scenario,
        made,
        period_s=options.period_s,
        max_usd_per_hour=options.max_usd_per_hour,
        overflow=options.overflow and not serves_alone(made),
        losses=options.losses(seeds[0]),
        marks=[*marks.values()],
        progress=progress,
    )
    runs = []
    for seed in seeds:
        results = [
            _run_window(run, (window, mark, deepcopy(router)), detailed, (seed, options.losses(seed + 1)), progress)
            for (window, mark), router in zip(marks.items(), run.routers, strict=True)
            if detailed
        ]
        outcome = _outcome(policy, sim_input, options, run, results, seed)
        runs.append(PolicyRun(outcome, scenario, run, tuple(results)))
    return runs


def _run_window(
    run: RatesResult,
    place: tuple[Window, float, Router],
    detailed: DetailedRun,
    chance: tuple[int, SpotLosses],
    progress: Progress,
) -> QueriesResult:
    (window, mark, router), (seed, losses) = place, chance
    steps, begin, launches = run.resume(mark, window.end_s)
    return detailed.run(router, launches, seed, losses).over(steps, begin, window, progress)


def _outcome(
    policy: str, sim_input: SimInput, options: RunOptions, run: RatesResult, windows: Sequence[QueriesResult], seed: int
) -> Outcome:
    warnings = _warnings(sim_input.scenario, options)
    parts = tuple(_window_outcome(one, run, options.applied(sim_input.scenario)) for one in windows)
    usd, expected = sum(part.window_usd for part in parts), sum(part.rates_usd for part in parts)
    ratio = usd / expected if expected else None
    if run.refused or run.late:
        warnings.append(f"{run.refused:,.0f} queries were refused and {run.late:,.0f} are late: these cost nothing")
    least = None if warnings else sim_input.optimum_usd
    latencies = np.concatenate([one.latencies_s for one in windows]) if windows else np.empty(0)
    came = sum(one.queries for one in windows)
    within = int((latencies * _MS <= sim_input.scenario.slo_ms).sum())
    return Outcome(
        policy=policy,
        queries=run.queries,
        cost_usd=run.cost_usd,
        serverless_usd=run.serverless_usd,
        instances_usd=run.instances_usd,
        optimum_usd=least,
        ratio=run.cost_usd / least if least else None,
        slo_met=within / came if came else None,
        latency_ms=Latencies.of(latencies * _MS) if latencies.size else None,
        launches=run.launches,
        cold_starts=_total(windows, "cold_starts"),
        idle_gb_s=_total(windows, "idle_gb_s"),
        batches=_total(windows, "batches"),
        throttled=_total(windows, "throttled"),
        retries=_total(windows, "retries"),
        queued=_total(windows, "queued"),
        hedges=_total(windows, "hedges"),
        hedges_usd=sim_input.scenario.serverless.usd_per_query * _total(windows, "duplicates") if windows else None,
        refused=run.refused,
        late=run.late,
        pings_usd=sim_input.scenario.serverless.usd_per_query * float(run.pings.sum()),
        min_billing_usd=run.min_billing_usd,
        booting_usd=run.booting_usd,
        instance_hours=run.on_s / S_PER_HOUR,
        scenario=sim_input.scenario_name,
        trace=sim_input.trace.name,
        scale=sim_input.scale,
        factor=sim_input.factor,
        seed=seed,
        period_s=options.period_s,
        warnings=tuple(warnings),
        windows=parts,
        window_usd=usd if parts else None,
        window_ratio=ratio,
        notes=() if ratio is None else (*_notes(ratio),),
        history=options.history.name if options.history else None,
    )


def _window_outcome(result: QueriesResult, run: RatesResult, scenario: Scenario) -> WindowOutcome:
    window, milliseconds = result.window, result.latencies_s * _MS
    return WindowOutcome(
        **asdict(window),
        window_usd=result.usd(scenario),
        rates_usd=rates_usd(run, scenario, window.begin_s, window.end_s),
        slo_met=int((milliseconds <= scenario.slo_ms).sum()) / result.queries if result.queries else None,
        latency_ms=Latencies.of(milliseconds) if milliseconds.size else None,
    )


def _notes(ratio: float) -> Iterator[str]:
    if abs(ratio - 1) > _NEAR:
        why = (
            "instances take more than qps while they meet the SLO, so less is left to Lambda"
            if ratio < 1
            else "queries come in clusters, which the level of rates spreads, so that Lambda or the fleet has more"
        )
        yield f"query by query the router spends {ratio:.2f} times the dollars of the level of rates: {why}"


def _warnings(scenario: Scenario, options: RunOptions) -> list[str]:
    kinds = dict.fromkeys((scenario.instance, options.applied(scenario).instance))
    return [*dict.fromkeys(warning for kind in kinds if (warning := kind.warning(scenario.slo_ms)) is not None)]


def _total(windows: Sequence[QueriesResult], name: str) -> Any:  # noqa: ANN401 - an int's or a float's
    return sum(getattr(one, name) for one in windows) if windows else None
