"""The findings of a probe as tables: constants beside those in use, what was measured, and the bill as predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

import numpy as np

from serfer.core.costs.aws import AwsFacts, LambdaFacts, StoreFacts, parse_aws
from serfer.core.costs.cost_model import TASK_SECONDS, invocation_usd, plan_load
from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S
from serfer_bench.study.aws.measure import UNITS, Fact, Sample, Samples, dump_facts, facts_of, transfers

_MB = 1e6
_P99_SAMPLES = 20  # from which on the slowest is not said instead
Rows = list[dict[str, str]]
"""The rows of a table, each its cells by column."""


@dataclass(frozen=True)
class Priced:
    """The facts of AWS by which functions on an architecture, and a store by its table, are priced."""

    facts: AwsFacts
    architecture: str
    table: str

    @property
    def functions(self) -> LambdaFacts:
        return self.facts.on(self.architecture)

    @property
    def store(self) -> StoreFacts:
        store: StoreFacts = getattr(self.facts, self.table)
        return store

    def usd(self, memory_mb: int, billed_ms: float) -> float:
        requests = self.store.price_put + self.store.price_get
        return invocation_usd(memory_mb, billed_ms, self.functions) + requests


@dataclass(frozen=True)
class Findings:
    """The findings of a probe of a plan's first stage, at the place that `where` names, on a `date`."""

    plan: Plan
    samples: Samples
    priced: Priced
    where: str
    date: str

    @property
    def facts(self) -> list[Fact]:
        weights = plan_load(self.plan, 0).weight_bytes
        return facts_of(self.samples, weights, self.priced.table, self.plan.memory_per_vcpu)

    @property
    def toml(self) -> str:
        return dump_facts(self.facts, self.priced.facts.sources, self.where, self.date)

    def tables(self) -> list[Rows]:
        return [rows for rows in (self.constants(), [*measured_rows(self.samples)], self.bill()) if rows]

    def constants(self) -> Rows:
        rows = []
        for fact in self.facts:
            known = fact.name in self.priced.facts.sources
            unit = self.priced.facts.sources[fact.name].unit if known else UNITS[fact.name]
            used = f"{_value(self.priced.facts, fact.name):.4g}" if known else "none"
            rows.append(
                {
                    "constant": fact.name,
                    "measured": f"{fact.value:.4g}",
                    "in use": used,
                    "unit": unit.partition(";")[0],
                    "samples": str(fact.samples),
                }
            )
        return rows

    def bill(self) -> Rows:
        """Return what invocations were billed by Lambda's REPORT lines, and what the price model predicts for them.

        With the constants in use, and with the measured ones in their places.
        """
        refined = replace(self.priced, facts=parse_aws(self.toml, self.priced.facts))
        rows = []
        for name, samples, cold in (("cold", self.samples.cold, True), ("warm", self.samples.small, False)):
            if not samples:
                continue
            billed = sum(self.priced.usd(sample.memory_mb, sample.billed_ms) for sample in samples)
            counts = samples[0].report.counts
            moved = counts.bytes_get + counts.bytes_put
            predicted, again = (
                len(samples) * predicted_usd(self.plan, priced, samples[0].memory_mb, moved, cold=cold)
                for priced in (self.priced, refined)
            )
            rows.append(
                {
                    "invocations": f"{len(samples)} {name}",
                    "predicted $": f"{predicted:.6f}",
                    "predicted with the measured constants $": f"{again:.6f}",
                    "billed $": f"{billed:.6f}",
                    "billed / predicted": f"{billed / predicted:.2f} ({billed / again:.2f})",
                }
            )
        return rows


def predicted_usd(
    plan: Plan, priced: Priced, memory_mb: int, moved_bytes: int, *, images: int = 1, cold: bool = False
) -> float:
    """Predict the dollars of an invocation of a plan's first tile, which reads from the store and writes to it.

    A `cold` one starts its environment, and builds its session.
    """
    load, functions = plan_load(plan, 0), priced.functions
    granted = vcpus(memory_mb, functions.memory_per_vcpu)
    compute = images * float(np.ravel(compute_seconds(load.serial_s, load.parallel_s, granted))[0])
    seconds = TASK_SECONDS + compute + 2 * priced.store.request_latency + moved_bytes / functions.bandwidth
    if cold:
        seconds += functions.init + load.weight_bytes / functions.load_rate
    return invocation_usd(memory_mb, seconds * MS_PER_S, functions) + priced.store.price_put + priced.store.price_get


def measured_rows(samples: Samples) -> Iterator[dict[str, str]]:
    if samples.warm:
        overheads = [sample.overhead_s for sample in samples.warm]
        yield _row("warm invocation, its task apart", "", overheads)
        usual = median(overheads)
        for name, groups in (
            ("start, by how many at once", samples.groups.items()),
            ("start, by MB added to the package", [(f"{size / _MB:g}", one) for size, one in samples.packages.items()]),
            ("start from a snapshot", [(len(samples.restored), samples.restored)]),
        ):
            yield from _starts(name, groups, usual)
    for memory_mb, several in samples.memories.items():
        yield _row(
            "the same compute, by MB of memory", memory_mb, [one.report.compute_ms / MS_PER_S for one in several]
        )
    for (way, size), seconds in transfers(samples.warm).items():
        yield _row(f"{way} in the store, by bytes", f"{size:,}", seconds)


def _starts(name: str, groups: Iterable[tuple[object, Sequence[Sample]]], usual: float) -> Iterator[dict[str, str]]:
    for value, samples in groups:
        if samples:
            yield _row(name, value, [sample.overhead_s - usual for sample in samples])


def _row(what: str, value: object, seconds: Sequence[float]) -> dict[str, str]:
    slowest = quantiles(seconds, n=100, method="inclusive")[98] if len(seconds) >= _P99_SAMPLES else max(seconds)
    return {
        "measured": what,
        "value": str(value),
        "p50 s": f"{median(seconds):.4f}",
        "p99, or slowest of fewer than 20, s": f"{slowest:.4f}",
        "samples": str(len(seconds)),
    }


def _value(facts: AwsFacts, name: str) -> float:
    table, _, key = name.partition(".")
    return float(getattr(facts.functions if table == "lambda" else getattr(facts, table), key))
