"""Invariants of a map plan's windows: they make the whole result, of parts that its tiles compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import ceil, isfinite

from serfer.core.errors import PlanError
from serfer.core.geometry import Rect, Span
from serfer.core.plan.model import MAX_ELEMENTS, Plan
from serfer.core.plan.statistics import check_statistics, partial_form
from serfer.core.plan.windows import (
    IMAGE_READ,
    MAX_WINDOWS,
    NO_TILE,
    AxisResult,
    AxisRule,
    AxisWindow,
    AxisWindows,
    SizeRules,
    StatisticsPass,
    Windows,
    at_least,
)

MOST_STATISTICS = 2**20
"""The most values of a vector of statistics, 4 MiB: each window of a map carries it."""
_LARGEST_STEP = 1e9
_NOWHERE = "plan.json has a result of windows that lies nowhere on its image"
_NO_IMAGE = "plan.json has a rule of windows for no image"
_OTHER_IMAGES = "plan.json has a pass that is not over the map's images"
_Kinds = dict[int, AxisWindow]
"""A window of each kind that occurs."""


def check_windows(plan: Plan, windows: Windows) -> None:
    """Refuse windows that reach beyond their image, leave a gap in its result, or are of no tile's size."""
    if len(plan.stages) != 1 or plan.gangs:
        raise PlanError("plan.json is a map plan of more than one stage")
    widest = len(windows.tiles[0]) if windows.tiles else 0
    sound = widest and windows.stride >= 1 and windows.stride_written >= 1
    if not sound or any(len(numbers) != widest for numbers in windows.tiles):
        raise PlanError("plan.json has windows of no kind, or of an impossible stride")
    if windows.crops is not None:
        height, width = windows.crops
        if min(height, width) < 1 or plan.input.channels * height * width > MAX_ELEMENTS:
            raise PlanError("plan.json has parts of an image to compare of no pixels, or of more than any has")
    outputs = len(plan.stages[0].outputs)
    axes = (*windows.heights, *windows.widths)
    if not all(_are_results(axis.others, outputs) for axis in axes):
        raise PlanError("plan.json has windows of other outputs than its stage")
    if not all(1 / _LARGEST_STEP <= axis.step <= _LARGEST_STEP for axis in axes):
        raise PlanError(_NOWHERE)
    _check_kept(windows)
    for number in range(outputs):
        heights, widths = ([axis.of_output(number) for axis in side] for side in (windows.heights, windows.widths))
        rows, cols = _kind_sizes(heights, len(windows.tiles)), _kind_sizes(widths, widest)
        _check_tiles(plan, number, windows, rows, cols)
    _check_passes(plan, windows)
    _check_rules(plan, windows, widest)


def _check_rules(plan: Plan, windows: Windows, widest: int) -> None:
    if windows.rules is None:
        return
    outputs = len(plan.stages[0].outputs)
    if not windows.rules.sides or windows.positioned:
        raise PlanError("plan.json has no rule of windows")
    for side in windows.rules.sides:
        down, across = [*_examples(side.rows, outputs)], [*_examples(side.cols, outputs)]
        for number in range(outputs):
            rows, cols = (
                _kind_sizes((axis.of_output(number) for axis in axes), count)
                for axes, count in ((down, len(windows.tiles)), (across, widest))
            )
            _check_tiles(plan, number, windows, rows, cols)


def _check_tiles(plan: Plan, output: int, windows: Windows, rows: _Kinds, cols: _Kinds) -> None:
    for (row, down), (col, across) in product(rows.items(), cols.items()):
        _check_tile(plan, output, windows, windows.tiles[row][col], (down, across))


def _kinds(pass_: StatisticsPass) -> Iterator[tuple[_Kinds, _Kinds]]:
    down, across = len(pass_.tiles), len(pass_.tiles[0])
    yield _kind_sizes(pass_.heights, down), _kind_sizes(pass_.widths, across)
    for side in pass_.rules.sides if pass_.rules else ():
        yield _kind_sizes(_examples(side.rows, 1), down), _kind_sizes(_examples(side.cols, 1), across)


def _takes(rules: SizeRules | None) -> list[tuple[int, set[object]]]:
    if rules is None:
        return []
    if not rules.sides:
        raise PlanError(_NO_IMAGE)
    smallest = rules.sides[-1]
    return [(r.unit, {(e.ending, e.least) for e in r.ends}) for r in (smallest.rows, smallest.cols)]


def _check_kept(windows: Windows) -> None:
    if (windows.rules is not None or windows.positioned) and (windows.kept or windows.reads):
        raise PlanError("plan.json keeps maps for windows that read the image")
    if any(kept.channels < 1 for kept in windows.kept):
        raise PlanError("plan.json keeps a map without channels")
    for axis in range(2):
        own = (windows.heights, windows.widths)[axis]
        sizes = [[line.size] for line in own]  # of the image, and of kept maps
        for pass_ in windows.passes:
            lines = (pass_.heights, pass_.widths)[axis]
            if len(lines) != len(sizes):
                raise PlanError(_OTHER_IMAGES)
            for known, line in zip(sizes, lines, strict=True):
                _check_reads(pass_.reads, line, known)
                known += [_kept_size(line, number) for number in range(len(pass_.keeps))]
                if any(len(window.keeps) != len(pass_.keeps) for window in line.windows):
                    raise PlanError("plan.json has windows that keep other maps than their pass")
        for known, line in zip(sizes, own, strict=True):
            _check_reads(windows.reads, line, known)


def _check_reads(reads: tuple[int, ...], axis: AxisWindows, known: Sequence[int]) -> None:
    sound = len({*reads}) == len(reads) and all(IMAGE_READ <= number < len(known) - 1 for number in reads)
    sound = sound and reads != (IMAGE_READ,) and all(len(window.reads) == len(reads) for window in axis.windows)
    if not sound or not all(
        0 <= span.start < span.stop <= known[number + 1]
        for window in axis.windows
        for number, span in zip(reads, window.reads, strict=True)
    ):
        raise PlanError("plan.json has windows that read what no pass before them keeps")


def _kept_size(axis: AxisWindows, number: int) -> int:
    end = 0
    for window in axis.windows:
        span = window.keeps[number] if number < len(window.keeps) else Span(0, 0)
        if span.start != end or span.stop <= end:
            raise PlanError("plan.json has a kept map with a gap")
        end = span.stop
    return end


def _read_form(plan: Plan, windows: Windows, reads: tuple[int, ...], sides: tuple[AxisWindow, AxisWindow]) -> Rect:
    down, across = sides
    if not reads:
        return Rect.whole(down.read.size, across.read.size)
    channels = [windows.kept[read].channels if read != IMAGE_READ else plan.input.channels for read in reads]
    spans = zip(channels, down.reads, across.reads, strict=True)
    size = sum(many * rows.size * cols.size for many, rows, cols in spans)
    return Rect.whole(*partial_form(size, plan.input.channels))


def _check_passes(plan: Plan, windows: Windows) -> None:
    sides = [[axis.size for axis in axes] for axes in (windows.heights, windows.widths)]
    maps = [map_ for pass_ in windows.passes for map_ in pass_.maps]
    if (
        not check_statistics(maps)
        or windows.values > MOST_STATISTICS
        or (windows.passes and len(plan.stages[0].outputs) > 1)
    ):
        raise PlanError("plan.json has statistics that are not one vector of known kinds")
    for pass_ in windows.passes:
        widest = len(pass_.tiles[0]) if pass_.tiles else 0
        alike = [[axis.size for axis in axes] for axes in (pass_.heights, pass_.widths)] == sides
        if not (alike and widest and pass_.maps) or any(len(numbers) != widest for numbers in pass_.tiles):
            raise PlanError(_OTHER_IMAGES)
        for rows, cols in _kinds(pass_):
            for row, col in product(rows, cols):
                _check_partial(plan, windows, pass_, pass_.tiles[row][col], (rows[row], cols[col]))
        if _takes(windows.rules) != _takes(pass_.rules):
            raise PlanError(_OTHER_IMAGES)


def _check_partial(
    plan: Plan, windows: Windows, pass_: StatisticsPass, number: int, sides: tuple[AxisWindow, AxisWindow]
) -> None:
    stage = plan.stages[0]
    if not 0 <= number < len(stage.tiles):
        raise PlanError("plan.json has windows of a pass that no tile computes")
    tile, channels = stage.tiles[number], stage.outputs[0].channels
    kept = zip(pass_.keeps, sides[0].keeps, sides[1].keeps, strict=True)
    size = pass_.partial_size + sum(kept_map.channels * rows.size * cols.size for kept_map, rows, cols in kept)
    wanted = [_read_form(plan, windows, pass_.reads, sides), Rect.whole(*partial_form(size, channels))]
    if [tile.inputs[0], tile.outputs[0]] != wanted:
        raise PlanError(f"plan.json's tile {number} is not of its pass's size")


def _examples(rule: AxisRule, outputs: int) -> Iterator[AxisWindows]:
    sound = rule.unit >= 1 and rule.unit_written >= 1 and bool(rule.first) and bool(rule.ends)
    sound = sound and rule.middle.written.size >= 1 and all(end.windows for end in rule.ends)
    sound = sound and all(_are_results(end.others, outputs) for end in rule.ends)
    sound = sound and not any(window.reads or window.keeps for window in rule.first)
    if not sound or len({end.ending for end in rule.ends}) < len(rule.ends):
        raise PlanError(_NO_IMAGE)
    units = ceil(rule.middle.written.size / rule.unit_written)
    for end in rule.ends:
        wanted = (end.least + more * rule.unit for more in (0, 1, units, 5 * units + 1))
        sizes = [at_least(size, end.ending, rule.unit) for size in wanted]
        axes = [axis for size in sizes if size is not None and (axis := rule.at(size))]
        if sizes[0] != end.least or len(axes) + sizes.count(None) < len(sizes):
            raise PlanError(_NO_IMAGE)
        yield from axes


def _are_results(others: Sequence[AxisResult], outputs: int) -> bool:
    return len(others) == outputs - 1 and all(1 / _LARGEST_STEP <= other.step <= _LARGEST_STEP for other in others)


def _kind_sizes(axes: Iterable[AxisWindows], kinds: int) -> _Kinds:
    found: _Kinds = {}
    for axis in axes:
        _check_axis(axis, kinds)
        for window in axis.windows:
            if _size(found.setdefault(window.kind, window)) != _size(window):
                raise PlanError("plan.json has windows of one kind but of two sizes")
    if not found:
        raise PlanError("plan.json is a map plan for images of no size")
    return found


def _size(window: AxisWindow) -> tuple[int, ...]:
    reads = window.reads or (window.read,)
    return tuple(read.size for read in (*reads, window.computed, *window.keeps))


def _check_axis(axis: AxisWindows, kinds: int) -> None:
    if not 0 < len(axis.windows) <= MAX_WINDOWS:
        raise PlanError(f"plan.json has no windows, or more than {MAX_WINDOWS:,}, along an axis")
    if axis.start is not None and not isfinite(axis.start):
        raise PlanError(_NOWHERE)
    end = 0
    for window in axis.windows:
        inside = 0 <= window.read.start < window.read.stop <= axis.size and 0 <= window.kind < kinds
        inside = inside and window.computed.contains(window.written)
        if not inside or window.written.start != end or window.written.stop <= end:
            raise PlanError("plan.json has windows outside of the image, or a gap between them")
        end = window.written.stop
    if end != axis.result:
        raise PlanError("plan.json has windows that do not make the whole result")


def _check_tile(plan: Plan, output: int, windows: Windows, number: int, sides: tuple[AxisWindow, AxisWindow]) -> None:
    tiles = plan.stages[0].tiles
    if number == NO_TILE or not 0 <= number < len(tiles):
        raise PlanError("plan.json has windows that no tile computes")
    down, across = sides
    made = Rect.whole(down.computed.size, across.computed.size)
    wanted = [_read_form(plan, windows, windows.reads, sides), made]
    if [tiles[number].inputs[0], tiles[number].outputs[output]] != wanted:
        raise PlanError(f"plan.json's tile {number} is not of its windows' size")
