"""Which policy, instance type and memory a load is served with at the least cost, within the service-level objective.

    policies x instance types x Lambda's memories ──> candidates ──> each run for every seed ──> the recommended one

All candidates see the same loads: those that the scenario itself is scaled for. A generator makes one for each seed; a
file's load is one, and only the arrivals within it differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, Final

from serfer.control.policies import buys_several_types
from serfer.control.scenario import LambdaTarget, Scenario
from serfer.core.errors import UsageError
from serfer.cost.loads.steps import Progress, silent
from serfer.local.process_pool import process_pool
from serfer_bench.study.policies import NAMES
from serfer_bench.study.sim.simulate import DetailedRun, LoadSpec, Outcome, RunOptions, SimInput, prepare, run_seeds

ALL: Final = "all"
SLO_SHARE: Final = 0.99
"""The share of queries that are to be answered within the SLO."""
MAX_RUNS: Final = 10_000
WORTH_PROCESSES: Final = 100_000
"""Decisions of all runs, from which on other processes pay for their start."""
_WITHOUT_INSTANCES: Final = "serverless"
_AS_CLOSE: Final = 0.005  # of the queries, by which candidates that miss the SLO count as equally close to it
_NOTABLE: Final = 0.0005  # of the dollars: what is less is 0.0% in print


@dataclass(frozen=True)
class Spread:
    """The mean of a value over seeds, the least and the largest."""

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """Return the spread of values; None where one of them is."""
        known = [value for value in values if value is not None]
        return cls(fmean(known), min(known), max(known)) if known and len(known) == len(values) else None


@dataclass(frozen=True, eq=False)
class LambdaChoice:
    """A way to have Lambda: its target, how windows are looked at with it, and the MB of its functions, if given."""

    target: LambdaTarget
    detailed: DetailedRun | None
    memory_mb: int | None = None


@dataclass(frozen=True)
class Candidate:
    """What may be recommended: a policy, the instance type that it starts (None where it starts none), and a memory."""

    policy: str
    instance: str | None
    memory_mb: int | None

    @property
    def label(self) -> str:
        on = "" if self.instance is None else f" on {self.instance}"
        return f"{self.policy}{on}" + ("" if self.memory_mb is None else f", Lambda with {self.memory_mb:,} MB")


@dataclass(frozen=True)
class Evaluation:
    """What a candidate costs, over seeds: `cost_usd` of the whole load at the level of rates, without other losses.

    `ratio` is that over the optimum with the first type and the scenario's Lambda, None with other memory.
    `window_usd` is what the router spends in the windows query by query, `window_ratio` that over what the level of
    rates has for them. `meets_slo` says whether `slo_share` of the queries are within the SLO for every seed, None
    where queries were not looked at. `comparable` is whether all load was served: what is refused or late is free.
    """

    policy: str
    instance: str | None
    memory_mb: int | None
    spot: bool
    seeds: int
    queries: Spread | None
    cost_usd: Spread | None
    ratio: Spread | None
    window_usd: Spread | None
    window_ratio: Spread | None
    slo_met: Spread | None
    p99_ms: Spread | None
    launches: Spread | None
    meets_slo: bool | None
    comparable: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    optimum_usd: Spread | None = None
    recommended: bool = False
    reason: str | None = None

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.policy, self.instance, self.memory_mb)

    @property
    def usd(self) -> float:
        return self.cost_usd.mean if self.cost_usd else 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """What to compare: a load in a scenario, policies and the seeds; each instance type, or the one of the options.

    `slo_share` of the queries are to be answered within the SLO.
    """

    load: LoadSpec
    scenario_name: str
    scenario: Scenario
    scale: str
    policies: Sequence[str]
    every_type: bool
    options: RunOptions
    lambdas: Sequence[LambdaChoice]
    first_seed: int = 0
    seeds: int = 1
    slo_share: float = SLO_SHARE

    def candidates(self) -> list[tuple[Candidate, RunOptions, LambdaChoice]]:
        kinds = [self.options.applied(self.scenario).instance.name]
        if self.every_type and self.options.kind is None:
            kinds = [
                one.name
                for one in self.scenario.instances
                if not one.burstable and (one.spot_usd_per_hour or not self.options.spot)
            ]
        found = []
        for policy, kind, choice in product(self.policies, kinds, self.lambdas):
            starts = policy != _WITHOUT_INSTANCES
            if starts or kind == kinds[0]:
                candidate = Candidate(policy, kind if starts else None, choice.memory_mb)
                found.append((candidate, replace(self.options, kind=kind), choice))
        if len(found) * self.seeds > MAX_RUNS:
            raise UsageError(f"{len(found)} candidates for {self.seeds} seeds are more than {MAX_RUNS:,} runs")
        return found

    def decisions(self) -> float:
        trace = self.load.read(self.first_seed)
        return len(self.candidates()) * self.seeds * max(len(trace.rates), trace.seconds / self.options.period_s)

    def inputs(self, progress: Progress = silent) -> list[tuple[SimInput, tuple[int, ...]]]:
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        groups = [(seed,) for seed in seeds] if self.load.is_seeded else [tuple(seeds)]
        return [
            (prepare(self.load.read(group[0], progress), self.scenario_name, self.scenario, self.scale), group)
            for group in groups
        ]


def policies_of(names: Sequence[str]) -> list[str]:
    return [name for name in NAMES if not buys_several_types(name)] if ALL in names else [*names]


def evaluate(comparison: Comparison, workers: int, progress: Progress = silent) -> list[Evaluation]:
    inputs = comparison.inputs(progress)
    candidates = comparison.candidates()
    jobs = [
        (number, sim_input, seeds, candidate, options, choice)
        for sim_input, seeds in inputs
        for number, (candidate, options, choice) in enumerate(candidates)
    ]
    decisions = len(candidates) * sum(
        max(len(one.trace.rates), one.trace.seconds / comparison.options.period_s) for one, _ in inputs
    )
    outcomes: dict[int, list[Outcome]] = {number: [] for number in range(len(candidates))}
    run = _in_processes if workers > 1 and decisions > WORTH_PROCESSES else _one_by_one
    for number, found in run(jobs, workers, progress):
        outcomes[number] += found
    evaluations = [
        _evaluation(candidate, comparison, sorted(outcomes[number], key=lambda one: one.seed))
        for number, (candidate, _, _) in enumerate(candidates)
    ]
    return recommend(evaluations, comparison)


_Job = tuple[int, SimInput, tuple[int, ...], Candidate, RunOptions, LambdaChoice]
_Found = Iterator[tuple[int, list[Outcome]]]


def _run(job: _Job) -> list[Outcome]:
    _, sim_input, seeds, candidate, options, choice = job
    changed = replace(sim_input, scenario=replace(sim_input.scenario, serverless=choice.target))
    runs = run_seeds(changed, candidate.policy, options, seeds, choice.detailed)
    return [each.outcome for each in runs]


def _one_by_one(jobs: Sequence[_Job], workers: int, progress: Progress) -> _Found:
    del workers
    for number, job in enumerate(jobs, 1):
        progress(f"run {number} of {len(jobs)}: {job[3].label}")
        yield job[0], _run(job)


def _in_processes(jobs: Sequence[_Job], workers: int, progress: Progress) -> _Found:
    with process_pool(min(workers, len(jobs))) as pool:
        running = {pool.submit(_run, job): job for job in jobs}
        progress(f"{len(jobs)} runs on {min(workers, len(jobs))} processors")
        for number, done in enumerate(as_completed(running), 1):
            job = running[done]
            progress(f"{number} of {len(jobs)} runs are done: {job[3].label}")
            yield job[0], done.result()


def _evaluation(candidate: Candidate, comparison: Comparison, outcomes: Sequence[Outcome]) -> Evaluation:
    def spread(value: Callable[[Outcome], float | None]) -> Spread | None:
        return Spread.of([value(one) for one in outcomes])

    slo_met = spread(lambda one: one.slo_met)
    return Evaluation(
        policy=candidate.policy,
        instance=candidate.instance,
        memory_mb=candidate.memory_mb,
        spot=comparison.options.spot and candidate.instance is not None,
        seeds=len(outcomes),
        queries=spread(lambda one: one.queries),
        cost_usd=spread(lambda one: one.cost_usd),
        ratio=None if candidate.memory_mb else spread(lambda one: one.ratio),
        optimum_usd=None if candidate.memory_mb else spread(lambda one: one.optimum_usd),
        window_usd=spread(lambda one: one.window_usd),
        window_ratio=spread(lambda one: one.window_ratio),
        slo_met=slo_met,
        p99_ms=spread(lambda one: one.latency_ms.p99 if one.latency_ms else None),
        launches=spread(lambda one: one.launches),
        meets_slo=slo_met.min >= comparison.slo_share if slo_met else None,
        comparable=not any(one.refused or one.late for one in outcomes),
        warnings=tuple(dict.fromkeys(warning for one in outcomes for warning in one.warnings)),
        notes=tuple(dict.fromkeys(note for one in outcomes for note in one.notes))[:1],
    )


def recommend(evaluations: Sequence[Evaluation], comparison: Comparison) -> list[Evaluation]:
    """Order candidates: those that meet the SLO by their dollars, then the others; the first one is recommended.

    Where none meets it, the cheapest of those is that come as close as any, within half a percent of the queries; where
    queries were not looked at, dollars alone decide. What refuses queries or answers them late stands last: that costs
    nothing.
    """

    def place(one: Evaluation) -> tuple[bool, bool, float, bool]:
        return not one.comparable, one.meets_slo is False, one.usd, one.policy != _WITHOUT_INSTANCES

    ranked = sorted(evaluations, key=place)
    if not (ranked and ranked[0].comparable):
        return ranked
    if ranked[0].meets_slo is False:
        served = [one for one in ranked if one.comparable]
        closest = max(map(_least_share, served))
        best = next(one for one in served if _least_share(one) >= closest - _AS_CLOSE)
        ranked = [best, *(one for one in ranked if one is not best)]
    reason = " ".join(_reasons(ranked, comparison))
    return [replace(ranked[0], recommended=True, reason=reason), *ranked[1:]]


def _least_share(one: Evaluation) -> float:
    return one.slo_met.min if one.slo_met else 0.0


def _reasons(ranked: Sequence[Evaluation], comparison: Comparison) -> Iterator[str]:
    best, slo_ms = ranked[0], comparison.scenario.slo_ms
    yield f"{best.candidate.label}: ${best.usd:,.4g}{_range(best)}"
    if best.meets_slo is False:
        closest = max(_least_share(one) for one in ranked if one.comparable)
        yield (
            f"answers {_least_share(best):.2%} within {slo_ms:g} ms. No candidate reaches {comparison.slo_share:.2%}, "
            f"the closest {closest:.2%}; this is the least of those that come within {_AS_CLOSE:.1%} of that."
        )
        return
    others = [one for one in ranked[1:] if one.comparable and one.meets_slo is not False]
    if not others:
        yield f"is the only candidate that answers {comparison.slo_share:.2%} within {slo_ms:g} ms."
        return
    what = "of all candidates" if best.slo_met is None else "of those that meet the SLO"
    shown = "," if best.slo_met is None else f", with {best.slo_met.mean:.2%} within {slo_ms:g} ms,"
    yield f"is the least {what}{shown} {_saving(best, others[0])}."
    yield from _doubts(best, others, slo_met=best.slo_met is not None)


def _range(one: Evaluation) -> str:
    cost = one.cost_usd
    if cost is None or one.seeds == 1 or cost.min == cost.max:
        return ""
    return f" ({cost.min:,.4g} to {cost.max:,.4g} over {one.seeds} seeds)"


def _saving(best: Evaluation, second: Evaluation) -> str:
    less = 1 - best.usd / second.usd if second.usd else 0.0
    if less < _NOTABLE:
        return f"{'as much as' if best.usd == second.usd else 'hardly less than'} {second.candidate.label}"
    return f"{less:.1%} below {second.candidate.label}"


def _doubts(best: Evaluation, others: Sequence[Evaluation], *, slo_met: bool) -> Iterator[str]:
    if not slo_met:
        yield "Latencies were not looked at (--level rates)."
    second = others[0]
    if best.cost_usd and second.cost_usd and best.seeds > 1 and second.cost_usd.min < best.cost_usd.max:
        yield f"Over the seeds its dollars overlap with those of {second.candidate.label}."
    looked = [one for one in others if one.window_usd]
    if best.window_usd and looked:
        least = min(looked, key=lambda one: one.window_usd.mean if one.window_usd else 0.0)
        if least.window_usd and least.window_usd.mean < best.window_usd.mean:
            yield (
                f"Query by query, in the windows alone, {least.candidate.label} spends less: "
                f"${least.window_usd.mean:,.4g} against ${best.window_usd.mean:,.4g}."
            )
