"""Maps on a terminal: what an image will take, how far it is, what it took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from serfer.cli.shared.display import counted, plain, print_table, styled
from serfer.cli.shared.options import print_json
from serfer.cli.shared.terminal import complain, err, out
from serfer.mapping.report import MapWatcher

if TYPE_CHECKING:
    from serfer.core.plan.image_normalisation import ImageStatistics
    from serfer.mapping.estimate import Estimate
    from serfer.mapping.many_images import ManyReport
    from serfer.mapping.report import MapComparison, MapProgress, MapReport, MapResult

_EVERY_S = 30.0  # a line of progress, where no terminal is watched,
_LATER = 0.05  # or after so much of the time so far: some 100 lines in ten hours
_MOST_TURNS = 10  # lines that do not wait for that, as a pause begins or ends
_MINUTE, _HOUR = 60, 3600
_MOST_FAILURES = 10
_UNLIKE = 0.1  # of what was predicted: from here on it is said why
_MOST_CHANNELS = 4  # of which it is said how they were normalised


class MapDisplay(MapWatcher):
    """Shows a map on a terminal as a bar, elsewhere as a line now and then."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("windows  {task.fields[said]}"),
            console=err,
            transient=True,
        )
        self._task: Any = None
        self._began = self._said_at = monotonic()
        self._state = ("", "")
        self._turns = 0

    def note(self, text: str) -> None:
        complain(text)

    def start(self, image: str, estimate: Estimate) -> None:
        for line in _estimate_lines(estimate):
            complain(f"{image}: {line}")
        if err.is_terminal:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._bar.start()
            done = estimate.windows - estimate.missing
            self._task = self._bar.add_task(plain(Path(image).name), total=estimate.windows, completed=done, said="")

    def progress(self, progress: MapProgress) -> None:
        done, said = progress.resumed + progress.done, _said(progress)
        if self._task is not None:
            self._bar.update(self._task, completed=done, said=said)
        elif self._is_due(progress):
            complain(f"{progress.image}: {done:,} of {progress.windows:,} windows, {said}")

    def _is_due(self, progress: MapProgress) -> bool:
        now, before = monotonic(), self._state
        running = now - self._began
        self._state = (progress.paused and "paused", progress.doing.partition(",")[0])
        turned = self._state[0] != before[0] or (self._state[1] != before[1] and running > _EVERY_S)
        self._turns += turned
        if now - self._said_at <= max(_EVERY_S, _LATER * running) and not (turned and self._turns <= _MOST_TURNS):
            return False
        self._said_at = now
        return True

    def stop(self) -> None:
        """Take the bar away, if it is shown; stopping one that is not would print an empty line."""
        if self._task is not None:
            self._bar.stop()


def _said(progress: MapProgress) -> str:
    if progress.doing:
        return f"{progress.doing}, ${progress.usd:.6f}"
    left = "" if progress.left_s is None else f", {duration(progress.left_s)} left"
    failed = f", {progress.failed:,} failed" if progress.failed else ""
    paused = f", paused: {plain(progress.paused)}" if progress.paused else ""
    return f"{progress.rate:.2f} a second{left}, ${progress.usd:.6f}{failed}{paused}"


def duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.1f} min"
    return f"{seconds / _HOUR:.1f} h"


def dollars(usd: float) -> str:
    return f"${usd:.{max(2, 2 - math.floor(math.log10(usd)))}f}" if usd else "$0"


def _estimate_lines(estimate: Estimate) -> list[str]:
    there = estimate.windows - estimate.missing
    resumed = f", {there:,} of them are there already" if there else ""
    size = f"{estimate.height:,} x {estimate.width:,} pixels, {estimate.windows:,} windows{resumed}"
    usd = f"${estimate.usd:.6f}{_per_area(estimate)}"
    took = f"{duration(estimate.seconds)}, {usd}, {estimate.cold_starts:,} cold starts included"
    return [
        f"{size}; overlaps add {estimate.overlap:.1%} to the work",
        *(passes_lines(estimate) if estimate.passes > 1 else ()),
        f"predicted on Lambda, {estimate.concurrency:,} at once: {took}",
    ]


def _per_area(estimate: Estimate) -> str:
    areas = ((estimate.usd_per_megapixel, "a megapixel"), (estimate.usd_per_km2, "a km²"))
    said = [f"{dollars(usd)} {area}" for usd, area in areas if usd is not None]
    return f" ({', '.join(said)})" if said else ""


def passes_lines(estimate: Estimate) -> list[str]:
    work = (
        f"{estimate.passes} passes over the image, {estimate.times:.2f} times the multiply-accumulates of the network: "
        "those before the last one add up statistics of the whole"
    )
    kept = f"maps that passes keep for later ones take up to {estimate.kept_bytes:,} bytes in {estimate.kept_where}"
    return [work, kept] if estimate.kept_bytes else [work]


def print_estimate(image: str, estimate: Estimate, results: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        areas = {"usd_per_megapixel": estimate.usd_per_megapixel, "usd_per_km2": estimate.usd_per_km2}
        print_json({"image": image, **asdict(estimate), **areas, "results": [*results]})
        return
    made = [f"results: {', '.join(results)}"] if len(results) > 1 else []
    for line in [*_estimate_lines(estimate), *made]:
        out.print(plain(f"{image}: {line}"))


def print_report(report: MapReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
        return
    for result in report.results:
        out.print(styled(result.path), f" {_shape(result)}")
    empty = f", {report.empty:,} without data" if report.empty else ""
    there = f", {report.resumed:,} from before" if report.resumed else ""
    out.print(
        f"{report.computed:,} windows computed{there}{empty} in {duration(report.seconds)}: "
        f"${report.cost_usd:.6f} on Lambda, predicted ${report.estimate.usd:.6f}"
        + (f"; paused for {duration(report.paused_s)} beside online load" if report.paused_s else "")
    )
    if report.usd_ratio is not None and abs(report.usd_ratio - 1) > _UNLIKE:
        out.print(_why_not_as_predicted(report.usd_ratio))
    if report.compared:
        out.print(plain(_compared(report.compared)), soft_wrap=True)
    if report.no_data_pixels:
        share = report.no_data_pixels / report.estimate.height / report.estimate.width
        seen = " that these windows read" if report.resumed else ""
        out.print(f"{report.no_data_pixels:,} pixels of the image{seen} ({share:.2%}) count as without data")
    if report.statistics and report.statistics.pixels:
        out.print(plain(_normalised(report.statistics)))
    if report.window_ms:
        row = ["", *(f"{value:,.0f}" for value in report.window_ms.values())]
        print_table(["a window's ms", *report.window_ms], [row])
    for failure in report.failures[:_MOST_FAILURES]:
        out.print(plain(f"window {failure.window} failed: {failure.error}"))
    if len(report.failures) > _MOST_FAILURES:
        out.print(f"... and {len(report.failures) - _MOST_FAILURES:,} more")


def _why_not_as_predicted(ratio: float) -> str:
    longer = f"{ratio:.1f} times" if ratio > 1 else f"{ratio:.0%}"
    return (
        f"dollars are for time: a window took {longer} as long as predicted for the processors of Lambda (local "
        "workers are as fast as this machine)"
    )


def _compared(found: MapComparison) -> str:
    if found.skipped:
        return f"not compared with the network: {found.skipped}"
    differ = f"values differ by at most {found.error:.1e} of their range" if found.error else "values are equal"
    far = [] if found.error is None else [differ]
    if found.error is None or found.other_classes:
        far.append(f"{found.other_classes:,} have another class")
    return (
        f"compared with the network in one piece on {counted(found.parts, 'part')} of the image, {found.pixels:,} "
        f"pixels: {', '.join(far)} ({duration(found.seconds)})"
    )


def _normalised(known: ImageStatistics) -> str:
    each = [f"(x - {low:,.6g}) / {span:,.6g}" for low, span in zip(known.offset, known.span, strict=True)]
    more = f", ... ({len(each) - _MOST_CHANNELS:,} more)" if len(each) > _MOST_CHANNELS else ""
    return f"normalised by {known.pixels:,} pixels of the image: {', '.join(each[:_MOST_CHANNELS])}{more}"


def _shape(result: MapResult) -> str:
    if result.dtype == "boxes":
        return "boxes" if result.boxes is None else f"{result.boxes:,} boxes"
    return f"{result.channels} x {result.height:,} x {result.width:,} {result.dtype}"


def print_many(report: ManyReport, out_place: str, retry: Path, *, as_json: bool) -> None:
    left = len(report.failed) + len(report.untried)
    if as_json:
        done = {"out": out_place, "mapped": len(report.done), "skipped": report.skipped}
        print_json({**done, "failed": report.failed, "untried": report.untried, "cost_usd": report.cost_usd})
        return
    there = f", {report.skipped:,} were there" if report.skipped else ""
    out.print(f"{len(report.done):,} images mapped into {plain(out_place)}{there}, ${report.cost_usd:.6f} on Lambda")
    for image, error in [*report.failed.items()][:_MOST_FAILURES]:
        out.print(plain(f"failed: {error if error.startswith(image) else f'{image}: {error}'}"))
    if left:
        out.print(plain(f"{left:,} images are left, listed in {retry}"))
