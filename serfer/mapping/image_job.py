"""One image of a map, from its checks to its result; whatever stops it, the same call goes on where it was."""

from __future__ import annotations

import filecmp
import json
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from serfer.core.errors import IncompleteMapError, InputError, PlanError, UsageError
from serfer.core.plan import Plan, answer_digest
from serfer.core.plan.windows import ImageWindows, Windows
from serfer.mapping.engine import MapTask, Outcome
from serfer.mapping.estimate import Estimate, WindowPrices
from serfer.mapping.input import WindowInput
from serfer.mapping.no_data import NO_PLACE, Gaps
from serfer.mapping.options import MapOptions
from serfer.mapping.output import ResultForm
from serfer.mapping.passes import ImagePasses, kept_in
from serfer.mapping.report import MapProgress, MapReport, percentiles
from serfer.mapping.spending import Spending
from serfer.offline.gate import OfflineGate
from serfer.pipeline.pipeline import Pipeline
from serfer.raster import RasterSource, ResultParts, check_result, check_space, open_raster, write_result
from serfer.raster.place import S3Place, parse_place

_MOST_NAMED = 5


class MapWatcher(Protocol):
    """What a caller wants to know while a map runs; its methods are called in the caller's own thread."""

    def note(self, text: str) -> None:
        """Take a warning."""
        ...

    def start(self, image: str, estimate: Estimate) -> None:
        """Take what an image will take, before its first window starts."""
        ...

    def progress(self, progress: MapProgress) -> None:
        """Take how far the image is, a few times a second."""
        ...


@dataclass(frozen=True)
class Mapper:
    """Maps images by one plan. `pipeline` opens it, or returns the open one; `concurrency` is for windows of a size.

    All images spend from the same `spending`, and pass the same `gate`. With `start_below_ceiling`, none
    starts that is predicted to pass it.
    """

    plan: Plan
    options: MapOptions
    prices: WindowPrices
    spending: Spending
    pipeline: Callable[[], Pipeline]
    concurrency: Callable[[int], int]
    watcher: MapWatcher
    gate: OfflineGate
    start_below_ceiling: bool = True

    @property
    def windows(self) -> Windows:
        """The plan's windows; raises PlanError for a plan that has none."""
        if self.plan.windows is None:
            raise PlanError(
                "this is not a map plan: its queries are whole images; make one with serfer map-plan, which is for "
                "images by their sizes"
            )
        return self.plan.windows

    def estimate(self, image: str | Path, out: str | Path, *, folder: bool = False) -> Estimate:
        """Return what an image will take, having checked everything that can be; nothing is written.

        Of a result in a `folder` that may not be there yet, its place is not checked.
        """
        with ExitStack() as stack:
            job = self._job(image, out, stack, check=not folder)
            for note in job.notes:
                self.watcher.note(f"{image}: {note}")
            missing = [*range(len(job.windows))]
            if job.directory.exists() and not self.options.restart:
                with ResultParts.create_or_resume(job.directory, job.identity, job.form.array) as parts:
                    missing = sorted({*missing} - parts.done())
            passes = ImagePasses.left_of(self.windows, job.source.size, job.directory, job.identity)
            return self.prices.estimate(job.windows, missing, job.source.size, job.concurrency, passes)

    def job_of(self, image: str | Path) -> str:
        """Return the text that stands for what an image's result follows from: the image, the plan, the options."""
        with open_raster(image) as source:
            return json.dumps(self.identity(source), sort_keys=True)

    def identity(self, source: RasterSource) -> dict[str, object]:
        """Return, of JSON's types, what the result of an image follows from."""
        return {"plan": answer_digest(self.plan), "image": dict(source.identity), "options": self.options.values()}

    def map(
        self, image: str | Path, out: str | Path, finished: Callable[[MapReport], None] = lambda _: None
    ) -> MapReport:
        """Map one image to a result; `finished` is called when that is written, before the parts are deleted.

        Raises IncompleteMapError where windows failed or the dollars are spent: what is done is kept.
        """
        started = time.monotonic()
        with ExitStack() as stack:
            job = self._job(image, out, stack)
            for note in job.notes:
                self.watcher.note(f"{image}: {note}")
            if self.options.restart:
                ResultParts.discard(job.directory)
                ImagePasses.discard(self.windows, job.directory)
            parts = stack.enter_context(ResultParts.create_or_resume(job.directory, job.identity, job.form.array))
            passes = ImagePasses.open(self.windows, job.source.size, job.directory, job.identity, stack)
            done = parts.done()
            if job.exists and (parts.written or (len(done) == len(job.windows) and _written_before(out, parts, job))):
                nothing = self._nothing(job)
                report = job.report(Outcome(), nothing.windows, time.monotonic() - started, 0.0, nothing)
                finished(report)
                passes.remove()
                parts.remove()
                return report
            parts.written = False
            check_result(out, job.form.array, job.form.options(self.plan, self.options))
            report = self._run(job, parts, passes, out, started)
            for note in report.notes[len(job.notes) :]:
                self.watcher.note(f"{image}: {note}")
            finished(report)
            parts.written = True
            passes.remove()
            parts.remove()
            return report

    def _nothing(self, job: _Job) -> Estimate:
        return self.prices.estimate(job.windows, (), job.source.size, job.concurrency)

    def _run(self, job: _Job, parts: ResultParts, passes: ImagePasses, out: str | Path, started: float) -> MapReport:
        if warning := check_space(parts, out):
            self.watcher.note(warning)
        missing = sorted({*range(len(job.windows))} - parts.done())
        left = passes.left
        estimate = self.prices.estimate(
            job.windows, missing, job.source.size, job.concurrency, left if missing else [(cut, ()) for cut, _ in left]
        )
        resumed = estimate.windows - estimate.missing
        self._check_ceiling(estimate, job)
        self.watcher.start(job.source.name, estimate)
        before, paused_s = self.spending.spent, self.gate.paused_s

        def watch(outcome: Outcome) -> None:
            self.watcher.progress(
                MapProgress(
                    image=job.source.name,
                    windows=estimate.windows,
                    resumed=resumed,
                    done=outcome.computed + outcome.empty,
                    failed=len(outcome.failures),
                    usd=self.spending.spent - before,
                    seconds=time.monotonic() - started,
                    paused=self.gate.reason,
                )
            )

        outcome = Outcome()
        if missing:
            outcome = passes.run(self._task(job, parts), missing, watch)
        report = job.report(outcome, resumed, time.monotonic() - started, self.spending.spent - before, estimate)
        report = replace(report, paused_s=self.gate.paused_s - paused_s)
        if not report.result:
            raise IncompleteMapError(_what_is_left(report, job), report)
        job.source.check_unchanged()
        write_result(
            out,
            parts,
            georeference=job.form.georeference(job.source),
            options=job.form.options(self.plan, self.options),
        )
        return replace(report, seconds=time.monotonic() - started)

    def _task(self, job: _Job, parts: ResultParts) -> MapTask:
        return MapTask(
            pipeline=self.pipeline(),
            source=job.source,
            windows=job.windows,
            input=job.input,
            form=job.form,
            gaps=job.gaps,
            parts=parts,
            prices=self.prices,
            spending=self.spending,
            gate=self.gate,
            concurrency=job.concurrency,
        )

    def _check_ceiling(self, estimate: Estimate, job: _Job) -> None:
        ceiling = self.options.max_cost_usd
        if (
            ceiling is None
            or self.options.force
            or not self.start_below_ceiling
            or self.spending.spent + estimate.usd <= ceiling
        ):
            return
        spent = f", and ${self.spending.spent:.6f} are spent" if self.spending.spent else ""
        raise UsageError(
            f"{job.source.name}: {estimate.missing:,} windows are predicted to cost ${estimate.usd:.6f}{spent}, more "
            f"than --max-cost-usd {ceiling:g}: allow more, or --force a start, which stops at that ceiling and can be "
            "resumed"
        )

    def _job(self, image: str | Path, out: str | Path, stack: ExitStack, *, check: bool = True) -> _Job:
        """Open an image, and check it, the plan and the result's place against one another."""
        windows_of_plan = self.windows
        _check_apart(image, out)
        source = stack.enter_context(open_raster(image))
        windows = windows_of_plan.of(*source.size, source.name)
        options = self.options
        window_input = WindowInput.of(self.plan, source, options)
        gaps = Gaps.of(source, window_input.bands, options)
        form = ResultForm.of(self.plan, windows, no_data=gaps.possible, options=options)
        if gaps.possible and form.place is None:
            raise InputError(
                f"{source.name} says which pixels hold no data, and {NO_PLACE}: it cannot be said which pixels of the "
                "result have none; map all pixels as they are with --no-data none"
            )
        directory = parts_directory(out, options.parts)
        exists = directory.exists() and not options.restart and _is_file(out)
        written = form.options(self.plan, options)
        if check:
            check_result(out, form.array, replace(written, overwrite=written.overwrite or exists))
        return _Job(
            mapper=self,
            source=source,
            out=str(out),
            windows=windows,
            form=form,
            input=window_input,
            gaps=gaps,
            directory=directory,
            exists=exists and not options.overwrite,
            concurrency=self.concurrency(_window_bytes(self.plan, source, window_input)),
        )


@dataclass(frozen=True)
class _Job:
    """An image that fits its plan and its result's place; `exists` says that a file stands at that place."""

    mapper: Mapper
    source: RasterSource
    out: str
    windows: ImageWindows
    form: ResultForm
    input: WindowInput
    gaps: Gaps
    directory: Path
    exists: bool
    concurrency: int

    @property
    def identity(self) -> dict[str, object]:
        """What a resumed job must have in common with the first."""
        return self.mapper.identity(self.source)

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the image is not used or not kept."""
        georeference = self.source.georeference
        lost = georeference.not_kept
        kept = (f"not kept in the result: {', '.join(lost)}",) if lost else ()
        if self.form.place is None and (georeference.transform or georeference.crs):
            kept = (*kept, f"the result has no georeference: {NO_PLACE}")
        return (*self.source.notes, *self.gaps.notes(self.source), *kept)

    def report(self, outcome: Outcome, resumed: int, seconds: float, usd: float, estimate: Estimate) -> MapReport:
        """Return what has been done."""
        plan, array = self.mapper.plan, self.form.array
        stopped = ""
        if outcome.over_ceiling:
            stopped = f"more would pass --max-cost-usd {self.mapper.options.max_cost_usd:g}"
        return MapReport(
            image=self.source.name,
            result=None if outcome.failures or stopped else self.out,
            height=array.rows.size,
            width=array.cols.size,
            channels=array.channels,
            dtype=array.dtype,
            plan=plan.digest,
            exact=self.mapper.windows.exact,
            difference=self.mapper.windows.difference,
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
            notes=(*self.notes, *_partly(outcome, self.mapper.options)),
        )


def _partly(outcome: Outcome, options: MapOptions) -> tuple[str, ...]:
    """Say how many pixels have the value for no data in some bands alone, which reached the network."""
    if not outcome.partly_missing or options.no_data_bands == "any":
        return ()
    note = (
        f"{outcome.partly_missing:,} pixels have the value for no data in some of the bands alone: it reached the "
        "network as any other; --no-data-bands any takes them as without data"
    )
    return (note,)


def parts_directory(out: str | Path, chosen: str | None = None) -> Path:
    """Return where the parts of a result are kept: beside a file, in the working directory for an object of S3."""
    if chosen is not None:
        return Path(chosen)
    where = parse_place(out)
    if isinstance(where, S3Place):
        return Path(f"{where.bucket}-{where.key.replace('/', '-')}.parts")
    return where.with_name(f"{where.name}.parts")


def _check_apart(image: str | Path, out: str | Path) -> None:
    """Refuse a result that would replace its own image, whatever may be overwritten."""
    one, other = parse_place(image), parse_place(out)
    same = one == other
    if isinstance(one, Path) and isinstance(other, Path):
        with suppress(OSError):  # what is not there, or has no such name, is reported by what opens it
            same = same or one.samefile(other)
    if same:
        raise UsageError(f"the result {out} would replace its image: choose another --out")


def _is_file(out: str | Path) -> bool:
    where = parse_place(out)
    return isinstance(where, Path) and where.is_file()


def _written_before(out: str | Path, parts: ResultParts, job: _Job) -> bool:
    """Whether a result is what its parts make: one that was killed had written it, and not yet deleted the parts."""
    place = Path(out)
    again = place.with_name(f".{place.stem}.{parts.digest[:8]}.again{place.suffix}")
    plan, options = job.mapper.plan, replace(job.mapper.options, overwrite=True)
    try:
        write_result(
            again,
            parts,
            georeference=job.form.georeference(job.source),
            options=job.form.options(plan, options),
        )
        return filecmp.cmp(place, again, shallow=False)
    finally:
        again.unlink(missing_ok=True)


def _window_bytes(plan: Plan, source: RasterSource, window_input: WindowInput) -> int:
    """Return about how many bytes of memory a window takes: as read, as sent (array, crop, payload), and its values."""
    [stage] = plan.stages
    read = max(tile.inputs[0].area for tile in stage.tiles)
    written = max(tile.outputs[0].area for tile in stage.tiles) * stage.outputs[0].channels
    stored = read * source.bands * np.dtype(source.dtype).itemsize
    return stored + 5 * read * plan.input.channels * window_input.value_bytes + 3 * 4 * written


def _what_is_left(report: MapReport, job: _Job) -> str:
    """Say in one line what an incomplete map lacks, and how to go on."""
    left = report.windows - report.resumed - report.computed - report.empty
    places = kept_in(job.mapper.windows, job.directory)
    kept = f"{report.windows - left:,} of {report.windows:,} windows are kept in {places}"
    if report.stopped:
        return (
            f"{report.image}: {report.stopped}, ${report.cost_usd:.6f} are spent; {kept}: run the same command again "
            "with more to spend, it resumes"
        )
    failed = report.failures
    first = failed[0]
    named = ", ".join(str(each.window) for each in failed[:_MOST_NAMED]) + (
        ", ..." if len(failed) > _MOST_NAMED else ""
    )
    of = "the result's" if first.in_pass is None else f"in pass {first.in_pass + 1} over the image, its"
    return (
        f"{report.image}: {len(failed):,} windows failed ({named}), the first ({of} rows {first.rows[0]} to "
        f"{first.rows[1]}, columns {first.cols[0]} to {first.cols[1]}) with: {first.error}; {kept}: run the same "
        "command again, it computes those that are missing"
    )
