"""One image of a map, from its checks to its result; whatever stops it, the same call goes on where it was."""

from __future__ import annotations

import filecmp
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import IncompleteMapError, InputError, PlanError, SerferError, UsageError
from serfer.core.frame_decoder import FrameDecoder
from serfer.core.plan import Plan, answer_digest
from serfer.core.plan.image_normalisation import ImageStatistics
from serfer.core.plan.windows import ImageWindows, Windows
from serfer.mapping.engine import MapTask, Outcome
from serfer.mapping.estimate import Estimate, WindowPrices
from serfer.mapping.input import WindowInput
from serfer.mapping.likeness import unlike_sample
from serfer.mapping.measuring import measure
from serfer.mapping.no_data import NO_PLACE, Gaps
from serfer.mapping.options import MapOptions
from serfer.mapping.padding import padded
from serfer.mapping.passes import ImagePasses, kept_in
from serfer.mapping.report import MapProgress, MapReport, percentiles
from serfer.mapping.results import (
    MapFile,
    is_there,
    parts_directories,
    parts_directory,
    result_files,
    result_places,
)
from serfer.mapping.spending import Spending
from serfer.offline.gate import OfflineGate
from serfer.pipeline.pipeline import Pipeline
from serfer.raster import RasterSource, ResultParts, open_raster
from serfer.raster.place import parse_place
from serfer.raster.results.parts import reserved
from serfer.system import give_back

_MOST_NAMED = 5


def no_decoder() -> FrameDecoder:
    """Raise PlanError: the plan was not opened with its directory."""
    raise PlanError("the plan's directory is not known, in which the decoder of its boxes lies")


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
    starts that is predicted to pass it. `decoder` returns that of a plan with boxes.
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
    decoder: Callable[[], FrameDecoder] = no_decoder

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
            if all(file.directory.exists() for file in job.files) and not self.options.restart:
                with ExitStack() as opened:
                    missing = sorted({*missing} - _done(job.parts(opened)))
            passes = ImagePasses.left_of(self.windows, job.source.size, job.files[0].directory, job.identity)
            return self._estimate(job, missing, passes)

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
            for file in job.files:
                if (usual := parts_directory(file.out)) != file.directory:
                    stack.enter_context(reserved(usual, file.out))
                if self.options.restart:
                    ResultParts.discard(file.directory)
            if self.options.restart:
                ImagePasses.discard(self.windows, job.files[0].directory)
            parts = job.parts(stack)
            passes = ImagePasses.open(self.windows, job.source.size, job.files[0].directory, job.identity, stack)
            written = job.written(parts) if job.exists else set()
            if len(written) == len(parts):
                job = job.measured(_kept_statistics(parts[0]))
                nothing = self._nothing(job)
                report = job.report(Outcome(), nothing.windows, time.monotonic() - started, 0.0, nothing)
                finished(report)
                passes.remove()
                _remove(parts)
                return report
            parts[0].written = False
            for number, file in enumerate(job.files):
                if number not in written:
                    file.check(overwrite=False)
            report = self._run(job, parts, passes, written, started)
            for note in report.notes[len(job.notes) :]:
                self.watcher.note(f"{image}: {note}")
            finished(report)
            parts[0].written = True
            passes.remove()
            _remove(parts)
            return report

    def _nothing(self, job: _Job) -> Estimate:
        return self._estimate(job, ())

    def _estimate(
        self, job: _Job, missing: Sequence[int], passes: Sequence[tuple[ImageWindows, Sequence[int]]] = ()
    ) -> Estimate:
        estimate = self.prices.estimate(job.windows, missing, job.size, job.concurrency, passes)
        return replace(estimate, pixel_m2=job.source.georeference.pixel_m2)

    def _run(
        self, job: _Job, parts: Sequence[ResultParts], passes: ImagePasses, written: set[int], started: float
    ) -> MapReport:
        for file, own in zip(job.files, parts, strict=True):
            if warning := file.space(own):
                self.watcher.note(warning)
        missing = sorted({*range(len(job.windows))} - _done(parts))
        left = passes.left
        estimate = self._estimate(job, missing, left if missing else [(cut, ()) for cut, _ in left])
        resumed = estimate.windows - estimate.missing
        self._check_ceiling(estimate, job)
        self.watcher.start(job.source.name, estimate)
        before, paused_s = self.spending.spent, self.gate.paused_s
        measured, predicted = self.spending.measured

        def watch(outcome: Outcome, doing: str = "") -> None:
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
                    doing=doing,
                )
            )

        outcome = Outcome()
        with self._saying_what_is_kept(job, parts, passes):
            if missing and job.source.decoded_once:
                watch(outcome, "decoding the image")
                job.source.decode()
            job = job.measured(self._statistics(job, parts[0], lambda doing: watch(outcome, doing)))
            if unlike := unlike_sample(job.source, job.input, job.gaps, self.windows.difference):
                self.watcher.note(f"{job.source.name}: {unlike}")
            give_back()  # what decoding and measuring took
            if missing:
                outcome = passes.run(self._task(job, parts), missing, watch)
        report = job.report(outcome, resumed, time.monotonic() - started, self.spending.spent - before, estimate)
        report = replace(
            report,
            unlike_sample=unlike,
            paused_s=self.gate.paused_s - paused_s,
            usd_ratio=self._ratio(measured, predicted),
        )
        if not report.results:
            raise IncompleteMapError(_what_is_left(report, job), report)
        job.source.check_unchanged()
        watch(outcome, "writing the result")
        results = [*report.results]
        give_back()
        with self._saying_what_is_kept(job, parts, passes):
            for number, (file, own) in enumerate(zip(job.files, parts, strict=True)):
                if number not in written:
                    boxes = file.write(file.out, own, job.source, job.size, overwrite=False)
                    results[number] = replace(results[number], boxes=boxes)
        return replace(report, results=tuple(results), seconds=time.monotonic() - started)

    @contextmanager
    def _saying_what_is_kept(self, job: _Job, parts: Sequence[ResultParts], passes: ImagePasses) -> Iterator[None]:
        """Say of whatever ends the block what is kept and how to go on, unless the error says it itself."""
        try:
            yield
        except (KeyboardInterrupt, SerferError) as error:
            windows = len(job.windows) + sum(len(cut) for cut, _ in passes.left)
            done = len(_done(parts)) + sum(len(cut) - len(missing) for cut, missing in passes.left)
            if done and job.kept not in str(error):
                self.watcher.note(
                    f"{done:,} of {windows:,} windows are kept in {job.kept}: run the same command again, it resumes"
                )
            raise

    def _ratio(self, measured: float, predicted: float) -> float | None:
        """Return the dollars measured since those, relative to what was predicted for them."""
        now, then = self.spending.measured
        return (now - measured) / (then - predicted) if then > predicted else None

    def _statistics(self, job: _Job, parts: ResultParts, say: Callable[[str], None]) -> ImageStatistics | None:
        """Return the image's statistics where the plan normalises by them, as kept with the parts or measured now."""
        how = job.input.by_image
        if how is None:
            return None
        kept = _kept_statistics(parts)
        if kept is not None and len(kept.offset) == (len(job.input.bands) if how.per_channel else 1):
            return kept
        total = job.size[0] * job.size[1]
        say("measuring the image")
        found = measure(job.source, job.gaps, how, lambda done: say(f"measuring the image, {done / total:.0%}"))
        job.source.check_unchanged()
        parts.measured = unstructure(found)
        return found

    def places(self, out: str) -> list[str]:
        """Return where the files of a result will be."""
        return result_places(self.plan, out, self.options)

    def _task(self, job: _Job, parts: Sequence[ResultParts]) -> MapTask:
        return MapTask(
            pipeline=self.pipeline(),
            source=job.source,
            windows=job.windows,
            input=job.input,
            gaps=job.gaps,
            targets=[file.target(own) for file, own in zip(job.files, parts, strict=True)],
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
        windows_of_plan, options = self.windows, self.options
        _check_apart(image, out)
        scratch = parts_directories(self.plan, str(out), options)[0].absolute().parent
        source = stack.enter_context(open_raster(image, scratch=scratch))
        size = source.size
        source = padded(source, self.plan, options)
        windows = windows_of_plan.of(*source.size, source.name)
        window_input = WindowInput.of(self.plan, source, options)
        gaps = Gaps.of(source, window_input.bands, options)
        files = result_files(self.plan, windows, str(out), options, self.decoder, no_data=gaps.possible)
        if gaps.possible and any(file.form.place is None for file in files):
            raise InputError(
                f"{source.name} says which pixels hold no data, and {NO_PLACE}: it cannot be said which pixels of the "
                "result have none; map all pixels as they are with --no-data none"
            )
        begun = files[0].directory.exists() and not options.restart
        if check:
            for file in files:
                file.check(overwrite=begun and is_there(file))
        return _Job(
            mapper=self,
            source=source,
            size=size,
            windows=windows,
            files=files,
            input=window_input,
            gaps=gaps,
            exists=begun and not options.overwrite,
            concurrency=self.concurrency(_window_bytes(self.plan, source, window_input)),
        )


@dataclass(frozen=True)
class _Job:
    """An image that fits its plan and its results' places; `exists` says that an earlier run may have written them."""

    mapper: Mapper
    source: RasterSource
    size: tuple[int, int]
    windows: ImageWindows
    files: Sequence[MapFile]
    input: WindowInput
    gaps: Gaps
    exists: bool
    concurrency: int

    def measured(self, statistics: ImageStatistics | None) -> _Job:
        """Return the same with the image's statistics."""
        return replace(self, input=self.input.measured(statistics, self.source.dtype))

    def parts(self, stack: ExitStack) -> list[ResultParts]:
        """Open the parts of each file, until the end of `stack`."""
        return [stack.enter_context(file.open(self.identity)) for file in self.files]

    def written(self, parts: Sequence[ResultParts]) -> set[int]:
        """Return the numbers of the files that an earlier run has written, and not yet deleted the parts.

        Those of the first file are marked when all files are written, and deleted last.
        """
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
        """What a resumed job must have in common with the first."""
        return self.mapper.identity(self.source)

    @property
    def kept(self) -> str:
        """Where the parts are, in words."""
        first, *others = (file.directory for file in self.files)
        return ", ".join([kept_in(self.mapper.windows, first), *map(str, others)])

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the image is not used or not kept."""
        georeference = self.source.georeference
        lost = georeference.not_kept
        kept = (f"not kept in the result: {', '.join(lost)}",) if lost else ()
        nowhere = [file.out for file in self.files if file.form.place is None]
        if nowhere and (georeference.transform or georeference.crs):
            which = "the result" if len(self.files) == 1 else ", ".join(nowhere)
            kept = (*kept, f"{which} has no georeference: {NO_PLACE}")
        return (*self.source.notes, *self.gaps.notes(self.source), *kept)

    def report(self, outcome: Outcome, resumed: int, seconds: float, usd: float, estimate: Estimate) -> MapReport:
        """Return what has been done."""
        plan, made = self.mapper.plan, [file.result(self.size) for file in self.files]
        first = made[0]
        stopped = ""
        if outcome.over_ceiling:
            stopped = f"more would pass --max-cost-usd {self.mapper.options.max_cost_usd:g}"
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
            statistics=self.input.statistics,
        )


def _kept_statistics(parts: ResultParts) -> ImageStatistics | None:
    """Return what was measured of the image of some parts, None for nothing; raises InputError for another record."""
    kept = parts.measured
    return None if kept is None else structure(ImageStatistics, kept, f"{parts.directory}", error=InputError)


def _partly(outcome: Outcome, options: MapOptions) -> tuple[str, ...]:
    """Say how many pixels have the value for no data in some bands alone, which reached the network."""
    if not outcome.partly_missing or options.no_data_bands == "any":
        return ()
    note = (
        f"{outcome.partly_missing:,} pixels have the value for no data in some of the bands alone: it reached the "
        "network as any other; --no-data-bands any takes them as without data"
    )
    return (note,)


def _done(parts: Sequence[ResultParts]) -> set[int]:
    """Return the windows of which every file has its part."""
    return set.intersection(*(each.done() for each in parts))


def _remove(parts: Sequence[ResultParts]) -> None:
    """Delete the parts of all files, those that say so last."""
    for each in reversed(parts):
        each.remove()


def _check_apart(image: str | Path, out: str | Path) -> None:
    """Refuse a result that would replace its own image, whatever may be overwritten."""
    one, other = parse_place(image), parse_place(out)
    same = one == other
    if isinstance(one, Path) and isinstance(other, Path):
        with suppress(OSError):  # what is not there, or has no such name, is reported by what opens it
            same = same or one.samefile(other)
    if same:
        raise UsageError(f"the result {out} would replace its image: choose another --out")


def _written_before(file: MapFile, parts: ResultParts, job: _Job) -> bool:
    """Whether a result is what its parts make: one that was killed had written it, and not yet deleted the parts."""
    place = Path(file.out)
    again = place.with_name(f".{place.stem}.{parts.digest[:8]}.again{place.suffix}")
    try:
        file.write(str(again), parts, job.source, job.size, overwrite=True)
        return filecmp.cmp(place, again, shallow=False)
    finally:
        again.unlink(missing_ok=True)


def _window_bytes(plan: Plan, source: RasterSource, window_input: WindowInput) -> int:
    """Return about how many bytes of memory a window takes: as read, as sent (array, crop, payload), and its values."""
    [stage] = plan.stages
    read = max(tile.inputs[0].area for tile in stage.tiles)
    written = max(
        sum(shape.channels * rect.area for shape, rect in zip(stage.outputs, tile.outputs, strict=True))
        for tile in stage.tiles
    )
    stored = read * source.bands * np.dtype(source.dtype).itemsize
    return stored + 5 * read * plan.input.channels * window_input.value_bytes + 3 * 4 * written


def _what_is_left(report: MapReport, job: _Job) -> str:
    """Say in one line what an incomplete map lacks, and how to go on."""
    left = report.windows - report.resumed - report.computed - report.empty
    kept = f"{report.windows - left:,} of {report.windows:,} windows are kept in {job.kept}"
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
