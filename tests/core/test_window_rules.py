"""Windows by rules make the whole result of an image of any length, each pixel of it once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import InputError
from serfer.core.geometry import Span
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
