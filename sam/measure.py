"""Values of `serfer/core/costs/aws.toml`, measured: from round trips, and from what workers report of their tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from serfer.core.costs.aws import Source
from serfer.core.wire import Report

_MS = 1000
_LEAST_WEIGHTS = 1_000_000  # bytes; to build sessions of fewer takes the same time


@dataclass(frozen=True)
class Sample:
    """One invocation: the seconds from sending it to its answer, without the network's, and the worker's report."""

    seconds: float
    report: Report

    @property
    def overhead_s(self) -> float:
        """The seconds of the invocation besides its task."""
        return self.seconds - self.report.total_ms / _MS


@dataclass(frozen=True)
class Fact:
    """A measured value, by its name in `aws.toml` ("lambda.init"), and how many samples it comes from."""

    name: str
    value: float
    samples: int


def facts_of(cold: Sequence[Sample], warm: Sequence[Sample], weight_bytes: int, store: str) -> list[Fact]:
    """Return what samples say: `cold` ones started their environments, `warm` ones read and wrote different sizes.

    `weight_bytes` are those of the function, `store` is the table of its store. What comes out as no positive number,
    for samples that are too few or too noisy, is left out.
    """
    facts = [*_invocations(warm), *_starts(cold, warm, weight_bytes), *_transfers(warm, store)]
    return [fact for fact in facts if fact.value > 0]


def _invocations(warm: Sequence[Sample]) -> Iterator[Fact]:
    """A round trip is a floor plus an exponential tail: the least, and the mean of what comes on top."""
    overheads = [sample.overhead_s for sample in warm]
    if overheads:
        yield Fact("lambda.invoke_floor", min(overheads), len(overheads))
        yield Fact("lambda.invoke_tail", fmean(overheads) - min(overheads), len(overheads))


def _starts(cold: Sequence[Sample], warm: Sequence[Sample], weight_bytes: int) -> Iterator[Fact]:
    if not cold:
        return
    starts = [sample.report.init_ms - sample.report.fetch_ms for sample in cold]
    yield Fact("lambda.init", median(starts) / _MS, len(cold))
    if warm and weight_bytes >= _LEAST_WEIGHTS:  # a cold task builds its session before it computes
        first, later = (median(sample.report.compute_ms for sample in samples) / _MS for samples in (cold, warm))
        if first > later:
            yield Fact("lambda.load_rate", weight_bytes / (first - later), len(cold))


def _transfers(warm: Sequence[Sample], store: str) -> Iterator[Fact]:
    """Fit seconds = latency + bytes / bandwidth to the median of each size that was read or written."""
    sizes: dict[tuple[str, int], list[float]] = {}
    for report in (sample.report for sample in warm):
        if report.counts.gets:
            sizes.setdefault(("read", report.counts.bytes_get), []).append(report.read_ms / _MS)
        if report.counts.puts:
            sizes.setdefault(("write", report.counts.bytes_put), []).append(report.write_ms / _MS)
    moved = [size for _, size in sizes]
    if len(set(moved)) < 2:  # noqa: PLR2004 - a line has two points
        return
    samples = sum(map(len, sizes.values()))
    slope, latency = np.polyfit(moved, [median(seconds) for seconds in sizes.values()], 1)
    yield Fact(f"{store}.request_latency", float(latency), samples)
    if slope > 0:
        yield Fact("lambda.bandwidth", float(1 / slope), samples)


def dump_facts(facts: Sequence[Fact], sources: Mapping[str, Source], where: str, date: str) -> str:
    """Return a file for SERFER_AWS_FILE; `sources` give the units, `where` says in which region and of what."""
    lines = [f"# Measured by serfer deploy smoke: {where}.", "# For SERFER_AWS_FILE; what it lacks stays as it ships."]
    for fact in facts:
        unit = f"{sources[fact.name].unit} ({fact.samples} samples, {where})"
        lines += ["", f"[{fact.name}]", f"value = {fact.value:.6g}", f"unit = {json.dumps(unit)}"]
        lines += [f"date = {json.dumps(date)}", 'tag = "M"']
    return "\n".join(lines) + "\n"
