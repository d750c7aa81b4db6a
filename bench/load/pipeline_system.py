"""Our own systems under load: a pipeline, with its queries' reports added up, and the unsplit network on all cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from serfer.core.keys import StoreCounts
from serfer.core.plan import Plan
from serfer.core.report import QueryReport
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.reference import unsplit
from serfer.pipeline.result import Result
from serfer_bench.core.part_times import LAYER, READ, SPLIT, WRITE, PartTimes, Times
from serfer_bench.core.system import Logits, Pixels, System, Totals

_MS_PER_S = 1000.0


class PipelineSystem(System):
    """A pipeline as a system, which closes it."""

    def __init__(self, name: str, pipeline: Pipeline, deadline_s: float) -> None:
        self.name = name
        self._deadline_s = deadline_s
        self._pipeline = pipeline
        self._lock = Lock()
        self._counts = StoreCounts()
        self._totals = Totals(usd=0.0, cold=0, retries=0, hedges=0)
        self._times = PartTimes()

    def submit(self, pixels: Pixels) -> Future[Logits]:
        answer: Future[Logits] = Future()
        query = self._pipeline.submit(pixels, deadline_s=self._deadline_s)
        query.add_done_callback(lambda done: self._end(done, answer))
        answer.add_done_callback(lambda given: given.cancelled() and query.cancel())
        return answer

    def counts(self) -> StoreCounts:
        return self._counts

    def totals(self) -> Totals:
        return self._totals

    def take_times(self) -> Times:
        with self._lock:
            return self._times.take()

    def close(self) -> None:
        self._pipeline.close()

    def _end(self, done: Future[Result], answer: Future[Logits]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            result = done.result()
        except (Exception, CancelledError) as error:  # noqa: BLE001 - whatever it is, it is the query's end
            answer.set_exception(error)
            return
        with self._lock:
            self._counts += result.report.store
            self._totals = _plus(self._totals, result.report)
            for part, ms in _times(result):
                self._times.add(part, ms)
        answer.set_result(result.logits)


def _times(result: Result) -> Iterator[tuple[str, list[float]]]:
    begin, end = result.split
    yield SPLIT, [(end - begin) * _MS_PER_S]
    for number, stage in enumerate(result.report.stages, 1):
        yield LAYER.format(number), [stage.ms]
    reports = [report for run in result.answer.stages for report in run.reports]
    yield READ, [report.read_ms for report in reports if report.counts.gets]
    yield WRITE, [report.write_ms for report in reports if report.counts.puts]


def _plus(spent: Totals, report: QueryReport) -> Totals:
    return Totals(
        bytes_put=spent.bytes_put + report.store.bytes_put,
        bytes_get=spent.bytes_get + report.store.bytes_get,
        polls=spent.polls + report.store.exists,
        usd=(spent.usd or 0.0) + report.cost_usd,
        cold=(spent.cold or 0) + sum(stage.cold for stage in report.stages),
        retries=(spent.retries or 0) + report.retries,
        hedges=(spent.hedges or 0) + report.hedges,
    )


class UnsplitSystem(System):
    """The unsplit network on as many threads as there are processors, each query on one: the machine's own limit."""

    def __init__(self, name: str, plan: Plan, directory: Path) -> None:
        self.name = name
        self._run = unsplit(plan, directory)
        self._threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="serfer-bench")

    def submit(self, pixels: Pixels) -> Future[Logits]:
        return self._threads.submit(self._run, pixels)

    def counts(self) -> StoreCounts:
        return StoreCounts()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
