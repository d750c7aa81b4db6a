"""An image that is being mapped: opened, checked against its plan and its results' places; what is kept, and done."""

from __future__ import annotations

import filecmp
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from serfer.core.plan import Plan, answer_digest
from serfer.mapping.engine import Outcome
from serfer.mapping.estimate import Estimate
from serfer.mapping.kept_maps import PassFiles
from serfer.mapping.no_data import NO_PLACE
from serfer.mapping.options import MapOptions
from serfer.mapping.report import MapReport, percentiles
from serfer.mapping.results import MapFile, is_there
from serfer.mapping.steps import MappedImage
from serfer.raster import RasterSource, ResultParts

_MOST_NAMED = 5


@dataclass(frozen=True)
class Job(MappedImage):
    """An image that fits its plan and its results' places; `exists` says that an earlier run may have written them."""

    options: MapOptions
    files: Sequence[MapFile]
    exists: bool
    concurrency: int

    @property
    def passes(self) -> PassFiles:
        work = self.options.work
        place = self.files[0].directory
        return PassFiles(self.known, self.source.size, place, Path(work) if work else None, self.identity)

    def parts(self, stack: ExitStack) -> list[ResultParts]:
        return [stack.enter_context(file.open(self.identity)) for file in self.files]

    def written(self, parts: Sequence[ResultParts]) -> set[int]:
        """Return the numbers of files that are written; the first is marked when all are, and its parts go last."""
        there = {number for number, file in enumerate(self.files) if is_there(file)}
        if parts[0].written and len(there) == len(parts):
            return there
        return {
            number
            for number in there
            if parts[number].done() == {*range(len(self.windows))}
            and _written_before(self.files[number], parts[number], self)
        }

    @property
    def identity(self) -> dict[str, object]:
        return identity_of(self.plan, self.source, self.options)

    @property
    def kept(self) -> str:
        _, *others = (file.directory for file in self.files)
        return ", ".join([self.passes.in_words(), *map(str, others)])

    @property
    def notes(self) -> tuple[str, ...]:
        georeference = self.source.georeference
        lost = georeference.not_kept
        kept = (f"not kept in the result: {', '.join(lost)}",) if lost else ()
        nowhere = [file.out for file in self.files if file.form.place is None]
        if nowhere and (georeference.transform or georeference.crs):
            which = "the result" if len(self.files) == 1 else ", ".join(nowhere)
            kept = (*kept, f"{which} has no georeference: {NO_PLACE}")
        if self.options.work and not self.passes.windows.kept:
            kept = (*kept, f"work {self.options.work} has no use: the plan keeps no maps between passes")
        return (*self.source.notes, *self.gaps.notes(self.source), *kept)

    def report(self, outcome: Outcome, resumed: int, seconds: float, usd: float, estimate: Estimate) -> MapReport:
        plan, made = self.plan, [file.result(self.size) for file in self.files]
        first = made[0]
        stopped = ""
        if outcome.over_ceiling:
            stopped = f"more would pass --max-cost-usd {self.options.max_cost_usd:g}"
        results = () if outcome.failures or stopped else tuple(made)
        return MapReport(
            image=self.source.name,
            result=results[0].path if results else None,
            results=results,
            height=first.height,
            width=first.width,
            channels=first.channels,
            dtype=first.dtype,
            plan=plan.digest,
            windows=estimate.windows,
            resumed=resumed,
            computed=outcome.computed,
            empty=outcome.empty,
            failures=tuple(sorted(outcome.failures, key=lambda failure: failure.window)),
            stopped=stopped,
            seconds=seconds,
            cost_usd=usd,
            window_ms=percentiles(outcome.latencies_ms),
            estimate=estimate,
            no_data_pixels=outcome.missing,
            notes=(*self.notes, *_partly(outcome, self.options)),
            statistics=self.input.statistics,
        )


def identity_of(plan: Plan, source: RasterSource, options: MapOptions) -> dict[str, object]:
    return {"plan": answer_digest(plan), "image": dict(source.identity), "options": options.values()}


def _partly(outcome: Outcome, options: MapOptions) -> tuple[str, ...]:
    if not outcome.partly_missing or options.no_data_bands == "any":
        return ()
    note = (
        f"{outcome.partly_missing:,} pixels have the value for no data in some of the bands alone: it reached the "
        "network as any other; no_data_bands=any takes them as without data"
    )
    return (note,)


def all_done(parts: Sequence[ResultParts]) -> set[int]:
    return set.intersection(*(part.done() for part in parts))


def _written_before(file: MapFile, parts: ResultParts, job: Job) -> bool:
    """Whether a result is what its parts make: one that was killed had written it, and not yet deleted the parts."""
    place = Path(file.out)
    again = place.with_name(f".{place.stem}.{parts.digest[:8]}.again{place.suffix}")
    try:
        file.write(str(again), parts, job.source, job.size, overwrite=True)
        return filecmp.cmp(place, again, shallow=False)
    finally:
        again.unlink(missing_ok=True)


def what_is_left(report: MapReport, job: Job) -> str:
    left = report.windows - report.resumed - report.computed - report.empty
    kept = f"{report.windows - left:,} of {report.windows:,} windows are kept in {job.kept}"
    if report.stopped:
        return (
            f"{report.image}: {report.stopped}, ${report.cost_usd:.6f} are spent; {kept}: run the same command again "
            "with more to spend, it resumes"
        )
    failed = report.failures
    first = failed[0]
    named = ", ".join(str(failure.window) for failure in failed[:_MOST_NAMED]) + (
        ", ..." if len(failed) > _MOST_NAMED else ""
    )
    of = "the result's" if first.in_pass is None else f"in pass {first.in_pass + 1} over the image, its"
    return (
        f"{report.image}: {len(failed):,} windows failed ({named}), the first ({of} rows {first.rows[0]} to "
        f"{first.rows[1]}, columns {first.cols[0]} to {first.cols[1]}) with: {first.error}; {kept}: run the same "
        "command again, it computes those that are missing"
    )


def what_is_wrong(report: MapReport, job: Job) -> str:
    found = report.compared
    assert found is not None and found.worst_window is not None  # noqa: S101, PT018 - as it is wrong
    written = job.windows[found.worst_window].written
    rows, cols = (f"{span.start:,} to {span.stop:,}" for span in (written.rows, written.cols))
    far = f"values differ by {found.error:.1e} of their range" if found.error else ""
    classes = f"{found.other_classes:,} pixels have another class" if found.other_classes else ""
    return (
        f"{report.image}: the result is wrong: on {found.parts:,} parts of the image it is not what the network makes "
        f"of them ({' and '.join(filter(None, [far, classes]))}), most so in window {found.worst_window}, rows {rows} "
        f"and columns {cols}; nothing was written, the windows are kept in {job.kept}: --restart computes them again, "
        "check=false writes them as they are"
    )
