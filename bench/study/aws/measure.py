"""Constants of the cost model, measured: from round trips, reports of workers, and REPORT lines of Lambda's log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from serfer.core.costs.aws import Source
from serfer.core.wire import Report
from serfer_bench.study.aws.tails import floor_and_tail, start_tail

_MS = 1000
_LEAST_WEIGHTS = 1_000_000  # bytes; to build sessions of fewer takes the same time
_THROTTLED = 1.1  # times as long as with a whole vCPU: less is noise
_REPORT = re.compile(r"^REPORT RequestId: .*$", re.MULTILINE)
_DURATION = re.compile(r"(?:^|\t)(Billed|Init|Restore) Duration: (\d{1,9}(?:\.\d{1,6})?) ms(?=\t|$)")
UNITS = {
    "lambda.start_tail": "s, mean of what an environment takes to begin its init, on top of the fastest possible",
}
"""Units of what is measured and not a value of `aws.toml`: the cost model has no such term."""


@dataclass(frozen=True)
class Sample:
    """One invocation: the seconds from sending it to its answer, without the network's, and the worker's report.

    `log` is the end of its log, where the service sent one.
    """

    seconds: float
    report: Report
    memory_mb: int
    log: str = ""

    @property
    def overhead_s(self) -> float:
        return self.seconds - self.report.total_ms / _MS

    @property
    def billed_ms(self) -> float:
        """The billed duration, by Lambda's own REPORT line, or by the worker's clock where there is none."""
        return billed_ms(self.log) or self.report.billed_ms

    @property
    def init_ms(self) -> float:
        """The initialisation by the REPORT line, or by the worker's clock; weights that were fetched apart."""
        return self._whole_init_ms - self.report.fetch_ms

    @property
    def placing_s(self) -> float:
        """The seconds of the invocation besides its task and the initialisation of its environment."""
        return self.overhead_s - self._whole_init_ms / _MS

    @property
    def restore_ms(self) -> float | None:
        """The restoring of a snapshot by the REPORT line; None where it has none."""
        return _reported_ms(self.log, "Restore")

    @property
    def _whole_init_ms(self) -> float:
        return _reported_ms(self.log, "Init") or self.report.init_ms


def billed_ms(log: str) -> float | None:
    return _reported_ms(log, "Billed")


def _reported_ms(log: str, kind: str) -> float | None:
    line = _REPORT.search(log)
    return next((float(ms) for name, ms in _DURATION.findall(line[0]) if name == kind), None) if line else None


@dataclass(frozen=True)
class Samples:
    """The samples of a probe, in seconds and bytes, to which it adds.

    `groups` are invocations that started environments, by how many were sent at once; `small` and `large` are warm, on
    inputs of two sizes. `memories` are warm by MB of memory, `packages` started environments by bytes added to the
    package, `restored` did from a snapshot. `missing` says what was not measured, and why.
    """

    groups: dict[int, list[Sample]] = field(default_factory=dict)
    small: list[Sample] = field(default_factory=list)
    large: list[Sample] = field(default_factory=list)
    memories: dict[int, list[Sample]] = field(default_factory=dict)
    packages: dict[int, list[Sample]] = field(default_factory=dict)
    restored: list[Sample] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def cold(self) -> list[Sample]:
        return [sample for group in self.groups.values() for sample in group]

    @property
    def warm(self) -> list[Sample]:
        return [*self.small, *self.large]


@dataclass(frozen=True)
class Fact:
    """A measured value, by its name in `aws.toml` ("lambda.init") or in `UNITS`, and its number of samples."""

    name: str
    value: float
    samples: int


def facts_of(samples: Samples, weight_bytes: int, store: str, memory_per_vcpu: float) -> list[Fact]:
    """Return what samples say.

    `weight_bytes` are those of the function, `store` is the table of its store, up to `memory_per_vcpu` MB a worker
    computes on one thread. What comes out as no positive number, for samples that are too few or too noisy, is left
    out.
    """
    facts = [
        *_invocations(samples.warm),
        *_starts(samples.cold, samples.warm, weight_bytes),
        *_packages(samples.packages),
        *_restoring(samples.restored, samples.warm),
        *_processors(samples.memories, memory_per_vcpu),
        *_transfers(samples.warm, store),
    ]
    return [fact for fact in facts if fact.value > 0]


def _invocations(warm: Sequence[Sample]) -> Iterator[Fact]:
    """A round trip is a floor plus an exponential tail, as in the cost model."""
    if warm:
        floor, tail = floor_and_tail(_overheads(warm))
        yield Fact("lambda.invoke_floor", floor, len(warm))
        yield Fact("lambda.invoke_tail", tail, len(warm))


def _starts(cold: Sequence[Sample], warm: Sequence[Sample], weight_bytes: int) -> Iterator[Fact]:
    if not cold:
        return
    yield Fact("lambda.init", median(sample.init_ms for sample in cold) / _MS, len(cold))
    if not warm:
        return
    if len(cold) > 1:
        placing = [sample.placing_s for sample in cold]
        yield Fact("lambda.start_tail", start_tail(placing, floor_and_tail(_overheads(warm))[1]), len(cold))
    if weight_bytes >= _LEAST_WEIGHTS:  # a cold task builds its session before it computes
        first, later = (median(sample.report.compute_ms for sample in samples) / _MS for samples in (cold, warm))
        if first > later:
            yield Fact("lambda.load_rate", weight_bytes / (first - later), len(cold))


def _packages(packages: Mapping[int, Sequence[Sample]]) -> Iterator[Fact]:
    """Fit seconds = start + bytes / rate to the fastest start with each size, which has the least of the tail."""
    started = {size: samples for size, samples in packages.items() if samples}
    if len(started) > 1:
        fastest = [min(sample.overhead_s for sample in samples) for samples in started.values()]
        slope, _ = np.polyfit([*started], fastest, 1)
        if slope > 0:
            yield Fact("lambda.package_rate", float(1 / slope), sum(map(len, started.values())))


def _restoring(restored: Sequence[Sample], warm: Sequence[Sample]) -> Iterator[Fact]:
    """By the REPORT line, or else as what a restored environment's invocation takes on top of a warm one."""
    if restored and warm:
        usual = median(sample.overhead_s for sample in warm)
        seconds = [
            sample.overhead_s - usual if sample.restore_ms is None else sample.restore_ms / _MS for sample in restored
        ]
        yield Fact("lambda.restore", median(seconds), len(restored))


def _processors(memories: Mapping[int, Sequence[Sample]], memory_per_vcpu: float) -> Iterator[Fact]:
    """One thread takes W seconds where it has a vCPU, W * memory_per_vcpu / memory where it has less than one.

    W is the least. Where one thread gains up to the last memory, that memory is the value: the same task on slower
    vCPUs, of more memory each, would look the same. Times that do not fall as memory grows are noise.
    """
    times = {
        memory_mb: median(sample.report.compute_ms for sample in samples)
        for memory_mb, samples in memories.items()
        if samples and memory_mb <= memory_per_vcpu
    }
    whole = min(times.values(), default=0.0)
    throttled = {memory_mb: memory_mb * ms / whole for memory_mb, ms in times.items() if ms > _THROTTLED * whole > 0}
    if throttled and max(throttled) < min(times.keys() - throttled.keys()):
        value = min(round(median(throttled.values())), max(times))
        yield Fact("lambda.memory_per_vcpu", value, sum(map(len, memories.values())))


def _transfers(warm: Sequence[Sample], store: str) -> Iterator[Fact]:
    """Fit seconds = latency + bytes / bandwidth to the median of each size that was read or written."""
    sizes = transfers(warm)
    moved = [size for _, size in sizes]
    if len(set(moved)) < 2:  # noqa: PLR2004 - a line has two points
        return
    samples = sum(map(len, sizes.values()))
    slope, latency = np.polyfit(moved, [median(seconds) for seconds in sizes.values()], 1)
    yield Fact(f"{store}.request_latency", float(latency), samples)
    if slope > 0:
        yield Fact("lambda.bandwidth", float(1 / slope), samples)


def transfers(warm: Sequence[Sample]) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of workers' requests to the store, by "read" or "write" and the bytes moved."""
    sizes: dict[tuple[str, int], list[float]] = {}
    for report in (sample.report for sample in warm):
        if report.counts.gets:
            sizes.setdefault(("read", report.counts.bytes_get), []).append(report.read_ms / _MS)
        if report.counts.puts:
            sizes.setdefault(("write", report.counts.bytes_put), []).append(report.write_ms / _MS)
    return sizes


def _overheads(samples: Sequence[Sample]) -> list[float]:
    return [sample.overhead_s for sample in samples]


def dump_facts(facts: Sequence[Fact], sources: Mapping[str, Source], where: str, date: str) -> str:
    """Return a file for SERFER_AWS_FILE; `sources` give the units, `where` says in which region and of what."""
    lines = [
        f"# Measured by serfer study measure-aws: {where}.",
        "# For SERFER_AWS_FILE; what it lacks stays as it ships.",
    ]
    for fact in (fact for fact in facts if fact.name in sources):
        unit = f"{sources[fact.name].unit} ({fact.samples} samples, {where})"
        lines += ["", f"[{fact.name}]", f"value = {fact.value:.6g}", f"unit = {json.dumps(unit)}"]
        lines += [f"date = {json.dumps(date)}", 'tag = "M"']
    return "\n".join(lines) + "\n"
