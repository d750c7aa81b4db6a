"""Windows by rules make the whole result of an image of any length, each pixel of it once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import InputError, PlanError
from serfer.core.geometry import Grid, Rect, Span, even_parts, grid_rects
from serfer.core.passes import StatisticsSum
from serfer.core.plan import InputSizes, Pad, Preprocess, SideLimit
from serfer.core.plan.statistics import (
    KINDS,
    MAX,
    MEAN,
    MIN,
    SUM,
    VARIANCE,
    MapStatistics,
    check_statistics,
    partial_form,
)
from serfer.core.plan.windows import AxisEnd, AxisRule, AxisWindow, SizeRules, WindowRules, Windows


def rule(side=32, halo=6, unit=8, made=4, residues=None, kinds=0):
    """The rule of a network that makes `made` of `unit` pixels and reads a halo: more windows at an end if needed."""
    scale = unit // made
    count = max(1, -(-halo // (side * scale)))
    first = [
        AxisWindow(
            kinds + number,
            Span(max(0, number * side * scale - halo), (number + 1) * side * scale + halo),
            Span(number * side, (number + 1) * side),
        )
        for number in range(count)
    ]
    around = -(-halo // unit)
    ends = []
    for residue in range(unit) if residues is None else residues:
        rest = residue // scale
        starts = [(rest - side) // made * made - number * side for number in reversed(range(count))]
        stops = [*starts[1:], rest]
        windows = tuple(
            AxisWindow(
                kinds + count + 1 + residue * count + number,
                Span(start * scale - halo, min(stop * scale + halo, residue)),
                Span(start, stop),
            )
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
        )
        least = (count + 2) * side * scale + 2 * around * unit
        least += (residue - least) % unit
        last = (residue - halo) // unit * made - side
        ends.append(AxisEnd(residue, least, rest, last, windows, 0.0))
    middle = AxisWindow(kinds + count, Span(-halo, side * scale + halo), Span(0, side))
    return AxisRule(unit, made, tuple(first), middle, tuple(ends), float(scale))


RULES = st.builds(
    rule,
    side=st.sampled_from([16, 32, 64]),
    halo=st.integers(0, 90),
    unit=st.sampled_from([8, 16]),
    made=st.sampled_from([4, 8]),
)


@given(RULES, st.integers(0, 5000))
def test_the_windows_of_any_length_write_each_pixel_once_and_lie_inside(axis, more):
    size = axis.ends[0].least + axis.unit + more
    windows = axis.at(size)
    assert windows.result == size * axis.unit_written // axis.unit
    done = 0
    for each in windows.windows:
        assert 0 <= each.read.start < each.read.stop <= size
        assert each.written.start == done < each.written.stop
        assert each.computed.contains(each.written)
        done = each.written.stop
    assert done == windows.result


@given(RULES, st.integers(0, 500))
def test_windows_of_a_kind_are_alike_but_for_whole_units(axis, more):
    seen = {}
    for length in (0, axis.unit, 7 * axis.unit):
        size = axis.ends[0].least + axis.unit + more + length
        for each in axis.at(size).windows:
            units, past = divmod(each.computed.start, axis.unit_written)
            like = past, each.computed.size, each.read.moved(-units * axis.unit)
            if each.kind <= len(axis.first):  # windows at the end differ from residue to residue
                assert seen.setdefault(each.kind, like) == like


def plan(*sides, refused=""):
    return Windows((), (), (), 1, 1, rules=SizeRules(tuple(WindowRules(each, each) for each in sides), refused))


def test_an_image_has_windows_of_the_side_that_reads_the_least():
    large, small = rule(side=512), rule(side=64, kinds=100)
    windows = plan(large, small)
    assert windows.of(20_000, 20_000).rows.windows[1].written.size == 512
    assert windows.of(600, 20_000).rows.windows[1].written.size == 64  # too few rows for the large ones


def test_length_that_the_network_does_not_take_is_refused_with_the_nearest_one():
    windows = plan(rule(residues=[0]), refused="operator 'cat' (Concat): its sizes differ")
    with pytest.raises(InputError, match=r"scan\.tif has 1001 x 2000 pixels.*'cat'.*1000 x 2000"):
        windows.of(1001, 2000, "scan.tif")
    with pytest.raises(InputError, match=r"has 40 x 2000 pixels, .* of \d+ pixels or more: make .* --size 40x2000$"):
        plan(rule()).of(40, 2000)


@pytest.mark.parametrize(
    ("residues", "words"),
    [
        ([0, 2, 4, 6], "that are multiples of 2"),
        ([4], "that are 4 more than multiples of 8"),
        ([1, 5], "that are 1, 5 more than multiples of 8"),
    ],
)
def test_a_rule_says_which_lengths_it_is_for(residues, words):
    assert str(rule(residues=residues)).endswith(words)


PLAIN = Preprocess(None, "opencv-bilinear", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3)
DETECTION = InputSizes.of("32..2016x32..2016,multiple=32,pixels=1048576")
PADDED = [Pad("centre", 114), Pad("corner", 114)]
limits = st.none() | st.builds(SideLimit, st.sampled_from(["shorter", "longer"]), st.integers(1, 3000))
sides = st.integers(1, 4000)


def text_detections(height, width, kind, limit):
    """PaddleOCR's and RapidOCR's resize: `limit_type` and `limit_side_len`, then multiples of 32."""
    ratio = 1.0
    if kind == "max" and max(height, width) > limit:
        ratio = float(limit) / height if height > width else float(limit) / width
    if kind == "min" and min(height, width) < limit:
        ratio = float(limit) / height if height < width else float(limit) / width
    return tuple(int(round(int(side * ratio) / 32) * 32) for side in (height, width))


@given(sides, sides, limits, st.sampled_from([None, *PADDED]))
def test_any_image_has_one_of_the_sizes(height, width, limit, pad):
    assert replace(PLAIN, limit=limit, pad=pad).size_for(height, width, DETECTION) in DETECTION


@given(sides, sides, st.sampled_from([("max", "longer"), ("min", "shorter")]), st.integers(32, 1500))
def test_sizes_within_the_bounds_are_those_of_text_detection(height, width, names, pixels):
    theirs = text_detections(height, width, names[0], pixels)
    ours = replace(PLAIN, limit=SideLimit(names[1], pixels)).size_for(height, width, DETECTION)
    scale = SideLimit(names[1], pixels).scale(height, width)
    fits = height * scale * width * scale <= DETECTION.most_pixels and max(height, width) * scale <= 2016
    if theirs in DETECTION and fits:
        assert ours == theirs


@given(sides, sides, st.sampled_from([1, 8]))
def test_a_line_of_text_has_the_width_of_text_recognition(height, width, multiple):
    sizes = InputSizes.of(f"48x320..2400,multiple={multiple}")
    rows, columns = replace(PLAIN, pad=Pad("height", 127)).size_for(height, width, sizes)
    theirs = min(2400, int(48 * max(320 / 48, width / height)))
    assert rows == 48
    assert theirs <= columns < theirs + multiple


@given(sides, sides, st.sampled_from(PADDED))
def test_a_padded_image_keeps_its_size_where_that_fits(height, width, pad):
    rows, columns = replace(PLAIN, pad=pad).size_for(height, width, DETECTION)
    if height <= 1000 and width <= 1000:
        assert (rows, columns) == (-(-height // 32) * 32, -(-width // 32) * 32)
        assert (pad.place, replace(PLAIN, pad=pad).placement(height, width, (rows, columns)).top == 0) != (
            "corner",
            False,
        )


@pytest.mark.parametrize(
    ("preprocess", "sizes", "why"),
    [
        (replace(PLAIN, resize=32), DETECTION, "by the crop"),
        (replace(PLAIN, pad=Pad("square", 0)), DETECTION, "by pad square"),
        (replace(PLAIN, pad=Pad("height", 0)), DETECTION, "needs one height"),
        (replace(PLAIN, limit=SideLimit("shorter", 8)), None, "the limit of the shorter side.*many sizes"),
    ],
)
def test_descriptions_of_other_plans_are_refused(preprocess, sizes, why):
    with pytest.raises(PlanError, match=why):
        preprocess.check_sizes(sizes)
    for side, pixels in (("upper", 8), ("longer", 0), ("shorter", 1 << 20)):
        with pytest.raises(PlanError, match="side"):
            SideLimit(side, pixels)


@given(st.integers(1, 500), st.integers(1, 20))
def test_even_parts_cover_in_order_and_differ_by_one_at_most(size, count):
    parts = even_parts(size, count)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(size))
    sizes = [part.size for part in parts]
    assert len(parts) == count
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))
def test_grid_rects_tile_the_map_exactly_row_by_row(height, width, rows, cols):
    grid = Grid(min(rows, height), min(cols, width))
    seen = np.zeros((height, width), dtype=int)
    rects = grid_rects(height, width, grid)
    for rect in rects:
        seen[rect.slices] += 1
    assert len(rects) == grid.tiles
    assert (seen == 1).all()
    assert rects == sorted(rects)
    assert sum(rect.area for rect in rects) == height * width


def test_a_rectangle_is_seen_from_another_and_a_grid_written_as_the_command_line_takes_it():
    assert Rect(Span(5, 8), Span(2, 3)).within(Rect(Span(4, 9), Span(1, 9))) == Rect(Span(1, 4), Span(1, 2))
    inner = [Rect(Span(0, 2), Span(0, 2)), Rect(Span(0, 3), Span(0, 2)), Rect(Span(0, 2), Span(-1, 1))]
    assert [Rect.whole(2, 2).contains(rect) for rect in inner] == [True, False, False]
    grids = [Grid(1, 1), Grid(1, 2), Grid(3, 2), Grid(1, 4, columns=True)]
    assert list(map(str, grids)) == ["1", "1x2", "3x2", "col4"]


def partial(values):
    """The partial result of a part (channels, elements), as a window computes it."""
    mean = values.mean(1)
    squares = ((values - mean[:, None]) ** 2).sum(1)
    found = [mean, squares, values.sum(1), values.max(1), values.min(1)]
    return np.concatenate([[values.shape[1]], *found]).astype(np.float32)


@given(
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    offset=st.sampled_from([0.0, 3.0, 1000.0]),
    seed=st.integers(0, 1000),
)
def test_parts_of_any_size_make_the_statistics_of_the_whole(parts, offset, seed):
    rng = np.random.default_rng(seed)
    whole = (rng.standard_normal((3, sum(parts))) + offset).astype(np.float32).astype(np.float64)
    total = StatisticsSum([MapStatistics(0, 3, KINDS)])
    for stop, size in zip(np.cumsum(parts), parts, strict=True):
        total.add(partial(whole[:, stop - size : stop]))
    mean, variance, summed, most, least = total.values().reshape(5, 3)
    np.testing.assert_allclose(mean, whole.mean(1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, whole.var(1), rtol=1e-4, atol=1e-4 + 1e-6 * offset)
    np.testing.assert_allclose(summed, whole.sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(most, whole.max(1).astype(np.float32))
    np.testing.assert_array_equal(least, whole.min(1).astype(np.float32))


def test_a_variance_keeps_its_digits_where_the_mean_is_large():
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((1, 4096)).astype(np.float32) + np.float32(10_000)
    total = StatisticsSum([MapStatistics(0, 1, (MEAN, VARIANCE))])
    for part in np.split(whole.astype(np.float64), 16, axis=1):
        total.add(partial(part)[:3])
    assert total.values()[1] == pytest.approx(whole.astype(np.float64).var(), rel=1e-2)


@given(st.integers(1, 100_000), st.integers(1, 2000))
def test_the_form_of_a_partial_result_holds_it(size, channels):
    rows, cols = partial_form(size, channels)
    assert channels * rows * cols >= size
    assert rows * cols <= 2 * -(-size // channels)


@pytest.mark.parametrize(
    "maps",
    [
        [MapStatistics(1, 2, (MEAN,))],
        [MapStatistics(0, 2, (MEAN,)), MapStatistics(3, 2, (MAX,))],
        [MapStatistics(0, 2, (VARIANCE,))],
        [MapStatistics(0, 2, (VARIANCE, MEAN))],
        [MapStatistics(0, 2, (MIN, MIN))],
        [MapStatistics(0, 2, ("median",))],
        [MapStatistics(0, 0, (SUM,))],
        [MapStatistics(0, 2, ())],
    ],
)
def test_statistics_that_no_plan_has_are_refused(maps):
    assert not check_statistics(maps)
    assert check_statistics([MapStatistics(0, 2, (MEAN, VARIANCE)), MapStatistics(4, 1, (SUM,))])
