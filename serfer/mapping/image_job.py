"""One image of a map, from its checks to its result; whatever stops it, the same call goes on where it was."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import IncompleteMapError, InputError, SerferError, UsageError
from serfer.core.frame_decoder import FrameDecoder
from serfer.core.geometry import Rect
from serfer.core.plan import Plan
from serfer.core.plan.image_normalisation import ImageNormalisation, ImageStatistics
from serfer.core.plan.windows import Windows
from serfer.core.units import FLOAT_BYTES, MIB
from serfer.mapping.comparison import Whole, compare
from serfer.mapping.engine import MapTask, Outcome, Spending
from serfer.mapping.estimate import Estimate, WindowPrices
from serfer.mapping.input import WindowInput
from serfer.mapping.job import Job, all_done, identity_of, what_is_left, what_is_wrong
from serfer.mapping.no_data import Gaps
from serfer.mapping.options import MapOptions
from serfer.mapping.passes import ImagePasses
from serfer.mapping.report import MapProgress, MapReport, MapResult, MapWatcher
from serfer.mapping.results import file_places, is_there, parts_directory, result_files
from serfer.mapping.steps import MappedImage, windows_of
from serfer.offline.gate import OfflineGate
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.event_loop import result_of
from serfer.raster import RasterSource, ResultParts, open_raster
from serfer.raster.place import parse_place
from serfer.raster.results.parts import reserved
from serfer.raster.statistics import Values, moments, percentiles
from serfer.system import give_back

_BLOCK_BYTES = 4 * MIB
_READERS = 2  # of blocks that are decoded while others are counted


@dataclass(frozen=True)
class Mapper:
    """Maps images by one plan. `pipeline` opens it, or returns the open one; `concurrency` is for windows of a size.

    All images spend from the same `spending`, and pass the same `gate`. With `start_below_ceiling`, none
    starts that is predicted to pass it. `decoder` returns that of a plan with boxes, `whole` the network in one piece.
    """

    plan: Plan
    options: MapOptions
    prices: WindowPrices
    spending: Spending
    pipeline: Callable[[], Pipeline]
    concurrency: Callable[[int], int]
    watcher: MapWatcher
    gate: OfflineGate
    decoder: Callable[[], FrameDecoder]
    whole: Callable[[], Whole]
    start_below_ceiling: bool = True

    @property
    def windows(self) -> Windows:
        return windows_of(self.plan)

    def estimate(self, image: str | Path, out: str | Path, *, folder: bool = False) -> Estimate:
        """Return what an image will take; the place of a result in a `folder` is not checked."""
        with ExitStack() as stack:
            job = self._job(image, out, stack, check=not folder)
            for note in job.notes:
                self.watcher.note(f"{image}: {note}")
            missing = [*range(len(job.windows))]
            if all(file.directory.exists() for file in job.files) and not self.options.restart:
                with ExitStack() as opened:
                    missing = sorted({*missing} - all_done(job.parts(opened)))
            job.passes.check_room()
            return self._estimate(job, missing, job.passes.left(mapped=not missing))

    def job_of(self, image: str | Path) -> str:
        """Return the text that stands for what an image's result follows from: the image, the plan, the options."""
        with open_raster(image) as source:
            return json.dumps(identity_of(self.plan, source, self.options), sort_keys=True)

    def map(
        self, image: str | Path, out: str | Path, finished: Callable[[MapReport], None] = lambda _: None
    ) -> MapReport:
        """Map one image to a result; `finished` is called when that is written, before the parts are deleted."""
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
                job.passes.discard()
            parts = job.parts(stack)
            passes = ImagePasses(job.passes, stack)
            written = job.written(parts) if job.exists else set()
            if len(written) == len(parts):
                job, nothing = job.measured(_kept_statistics(parts[0])), [list[int]() for _ in self.windows.passes]
                estimate = self._estimate(job, (), nothing)
                report = job.report(Outcome(), estimate.windows, time.monotonic() - started, 0.0, estimate)
            else:
                report = self._run(job, parts, passes, written, started)
                for note in report.notes[len(job.notes) :]:
                    self.watcher.note(f"{image}: {note}")
            finished(report)
            parts[0].written = True
            passes.remove()
            for part in reversed(parts):
                part.remove()
            return report

    def _estimate(self, job: Job, missing: Sequence[int], left: Sequence[Sequence[int]]) -> Estimate:
        passes = [(job.passes.of(number), numbers) for number, numbers in enumerate(left)]
        estimate = self.prices.estimate(job.windows, missing, job.size, job.concurrency, passes)
        return replace(
            estimate,
            pixel_m2=job.source.georeference.pixel_m2,
            kept_bytes=job.passes.most_bytes(),
            kept_where=job.passes.kept_where,
        )

    def _run(
        self, job: Job, parts: Sequence[ResultParts], passes: ImagePasses, written: set[int], started: float
    ) -> MapReport:
        parts[0].written = False
        for number, file in enumerate(job.files):
            if number not in written:
                file.check(overwrite=False)
        for file, own in zip(job.files, parts, strict=True):
            if warning := file.space(own):
                self.watcher.note(warning)
        missing = sorted({*range(len(job.windows))} - all_done(parts))
        job.passes.check_room(parts[0])
        estimate = self._estimate(job, missing, passes.missing(mapped=not missing))
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
            give_back()  # what decoding and measuring took
            if missing:
                outcome = passes.run(self._task(job, parts), missing, watch)
        report = job.report(outcome, resumed, time.monotonic() - started, self.spending.spent - before, estimate)
        report = replace(report, paused_s=self.gate.paused_s - paused_s, usd_ratio=self._ratio(measured, predicted))
        if not report.results:
            raise IncompleteMapError(what_is_left(report, job), report)
        job.source.check_unchanged()
        if self.options.check:
            watch(outcome, "comparing with the network")
            report = self._compared(report, job, parts, passes)
        watch(outcome, "writing the result")
        give_back()
        with self._saying_what_is_kept(job, parts, passes):
            results = _write_results(job, parts, report.results, written)
        return replace(report, results=results, seconds=time.monotonic() - started)

    def _compared(self, report: MapReport, job: Job, parts: Sequence[ResultParts], passes: ImagePasses) -> MapReport:
        """Compare before the result is written, so that nobody takes a wrong one for the network's."""
        with self._saying_what_is_kept(job, parts, passes):
            found = compare(job, parts, self.windows, self.whole, passes.statistics())
        report = replace(report, compared=found)
        if found.wrong:
            raise IncompleteMapError(what_is_wrong(report, job), replace(report, result=None, results=()))
        return report

    @contextmanager
    def _saying_what_is_kept(self, job: Job, parts: Sequence[ResultParts], passes: ImagePasses) -> Iterator[None]:
        try:
            yield
        except (KeyboardInterrupt, SerferError) as error:
            left = passes.missing(mapped=False)
            sizes = [len(job.passes.of(number)) for number in range(len(left))]
            windows = len(job.windows) + sum(sizes)
            done = len(all_done(parts)) + sum(sizes) - sum(map(len, left))
            if done and job.kept not in str(error):
                self.watcher.note(
                    f"{done:,} of {windows:,} windows are kept in {job.kept}: run the same command again, it resumes"
                )
            raise

    def _ratio(self, measured: float, predicted: float) -> float | None:
        now, then = self.spending.measured
        return (now - measured) / (then - predicted) if then > predicted else None

    def _statistics(self, job: Job, parts: ResultParts, say: Callable[[str], None]) -> ImageStatistics | None:
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
        return [path for path, _ in file_places(self.plan, out, self.options)]

    def _task(self, job: Job, parts: Sequence[ResultParts]) -> MapTask:
        return MapTask(
            pipeline=self.pipeline(),
            step=job.step([file.window_form for file in job.files]),
            parts=parts,
            prices=self.prices,
            spending=self.spending,
            gate=self.gate,
            concurrency=job.concurrency,
        )

    def _check_ceiling(self, estimate: Estimate, job: Job) -> None:
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
            f"than --max-cost-usd {ceiling:g}: allow more, or force=true to start, which stops at that ceiling and can "
            "be resumed"
        )

    def _job(self, image: str | Path, out: str | Path, stack: ExitStack, *, check: bool = True) -> Job:
        options = self.options
        _check_apart(image, out)
        [(_, directory), *_] = file_places(self.plan, str(out), options)
        source = stack.enter_context(open_raster(image, scratch=directory.absolute().parent))
        mapped = MappedImage.of(self.plan, source, options)
        files = result_files(mapped, str(out), options, self.decoder)
        begun = files[0].directory.exists() and not options.restart
        if check:
            for file in files:
                file.check(overwrite=begun and is_there(file))
        return Job(
            **vars(mapped) | {"options": options},
            files=files,
            exists=begun and not options.overwrite,
            concurrency=self.concurrency(_window_bytes(self.plan, mapped.source, mapped.input)),
        )


def _write_results(
    job: Job, parts: Sequence[ResultParts], results: Sequence[MapResult], before: set[int]
) -> tuple[MapResult, ...]:
    written = [*results]
    for number, (file, own) in enumerate(zip(job.files, parts, strict=True)):
        if number not in before:
            boxes = file.write(file.out, own, job.source, job.size, overwrite=False)
            written[number] = replace(results[number], boxes=boxes)
    return tuple(written)


def _kept_statistics(parts: ResultParts) -> ImageStatistics | None:
    kept = parts.measured
    return None if kept is None else structure(ImageStatistics, kept, f"{parts.directory}", error=InputError)


def _check_apart(image: str | Path, out: str | Path) -> None:
    one, other = parse_place(image), parse_place(out)
    same = one == other
    if isinstance(one, Path) and isinstance(other, Path):
        with suppress(OSError):  # what is not there, or has no such name, is reported by what opens it
            same = same or one.samefile(other)
    if same:
        raise UsageError(f"the result {out} would replace its image: choose another --out")


def _window_bytes(plan: Plan, source: RasterSource, window_input: WindowInput) -> int:
    """Return about how many bytes of memory a window takes: as read, as sent (array, crop, payload), and its values."""
    [stage] = plan.stages
    reads_kept = plan.windows is not None and bool(plan.windows.kept)
    value_bytes = FLOAT_BYTES if reads_kept else window_input.value_bytes
    read = max(tile.inputs[0].area for tile in stage.tiles)
    written = max(
        sum(shape.channels * rect.area for shape, rect in zip(stage.outputs, tile.outputs, strict=True))
        for tile in stage.tiles
    )
    stored = read * source.bands * np.dtype(source.dtype).itemsize
    return stored + 5 * read * plan.input.channels * value_bytes + 3 * FLOAT_BYTES * written


def measure(
    source: RasterSource, gaps: Gaps, how: ImageNormalisation, progress: Callable[[int], None]
) -> ImageStatistics:
    """Measure the pixels that hold data, of the bands that the network takes; raises InputError for NaN."""
    bands = gaps.bands
    groups = len(bands) if how.per_channel else 1
    counted = 0

    def passes() -> Iterator[Values]:
        nonlocal counted
        counted, done = 0, 0
        for rect, (pixels, missing) in _read_ahead(source, gaps):
            kept = [pixels[band][~missing] if missing.any() else pixels[band].ravel() for band in bands]
            _check_finite(source, bands, kept)
            counted += kept[0].size  # pixels, whatever the number of bands
            done += rect.area
            progress(done)
            yield kept if how.per_channel else [np.concatenate(kept)]

    if how.percentiles is None:
        mean, std = moments(passes, groups)
        return how.by_moments(counted, *_zero_if_none(counted, mean, std))
    found = percentiles(passes, source.dtype, groups, how.percentiles)
    return how.by_percentiles(counted, *_zero_if_none(counted, found))


def _zero_if_none(counted: int, *found: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    return [values if counted else np.zeros_like(values) for values in found]


def _read_ahead(source: RasterSource, gaps: Gaps) -> Iterator[tuple[Rect, tuple[NDArray[Any], NDArray[np.bool_]]]]:
    """Yield each block of an image with its pixels and which of them are missing, the next ones being decoded."""

    def read(rect: Rect) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        pixels, masked = source.read_masked(rect)
        return pixels, gaps.missing(pixels, masked)[0]

    with ThreadPoolExecutor(_READERS, thread_name_prefix="serfer-measure") as threads:
        waiting: deque[tuple[Rect, Future[tuple[NDArray[Any], NDArray[np.bool_]]]]] = deque()
        try:
            for rect in source.blocks(_BLOCK_BYTES):
                waiting.append((rect, threads.submit(read, rect)))
                if len(waiting) > _READERS:
                    first, future = waiting.popleft()
                    yield first, result_of(future)
            while waiting:
                first, future = waiting.popleft()
                yield first, result_of(future)
        finally:
            for _, future in waiting:
                future.cancel()


def _check_finite(source: RasterSource, bands: tuple[int, ...], kept: Values) -> None:
    if np.dtype(source.dtype).kind != "f":
        return
    for band, values in zip(bands, kept, strict=True):
        if not np.isfinite(values).all():
            raise InputError(
                f"{source.name} has values in band {band + 1} that are NaN or infinite and do not count as without "
                "data, so that it cannot be normalised by all of its pixels: name the value with --no-data, such as "
                "--no-data nan, or mask these pixels"
            )
