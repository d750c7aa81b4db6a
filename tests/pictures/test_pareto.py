import math
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import PlanError, UsageError
from serfer.core.plan import Alternative
from serfer.pictures import choices, draw_pareto
from serfer.pictures.draw_pareto import pareto_scene
from serfer.pictures.pareto import Box, placed, scale_of
from serfer.pictures.scene import WHITE, Block, Path, Text
from tests.core.plans import small_plan

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


_FREE = Alternative("1", 1, 0.0, 0.0, fits=True, chosen=True)


def name(ms, tasks):
    return f"one function of {ms:g} MB" if tasks == 1 else f"{tasks} tasks"


def competed(*others):
    """A plan of 100 ms and 4 dollars a million that competed with others: (ms, dollars a million, tasks, fits)."""
    mine = Alternative("2x2 at 1769 MB, then 1 at 1769 MB", 5, 100.0, 4e-6, fits=True, chosen=True)
    found = [
        Alternative(
            f"one function of {ms:g} MB" if tasks == 1 else f"{tasks} tasks", tasks, ms, usd / 1e6, fits, chosen=False
        )
        for ms, usd, tasks, fits in others
    ]
    return replace(small_plan(), alternatives=(*found, mine))


PLAN = competed((60, 9, 9, True), (80, 5, 1, False), (110, 5, 7, True), (200, 1, 1, True))


def test_what_a_plan_competed_with_is_numbered_by_time_and_judged():
    found = choices(PLAN)
    assert [each.plan.ms for each in found] == [60, 80, 100, 110, 200]
    assert [each.number for each in found] == [1, 2, 3, 4, 5]
    assert [each.verdict for each in found] == ["best", "does not fit", "chosen", "beaten", "best"]
    assert [each.label for each in found] == ["1", "2 unsplit, 80 MB", "3 chosen", "4", "5 unsplit, 200 MB"]
    assert found[0].usd == pytest.approx(9)


def test_of_equals_neither_is_beaten_and_what_does_not_fit_beats_nobody():
    assert [each.best for each in choices(competed((100, 4, 2, True), (50, 1, 1, False)))] == [False, True, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_impossible_figures_are_refused(value):
    with pytest.raises(PlanError, match="impossible figures"):
        choices(competed((value, 1, 2, True)))


def test_a_plan_that_does_not_say_is_refused():
    with pytest.raises(PlanError, match="says nothing of what the plan competed with"):
        choices(replace(small_plan(), alternatives=()))


@given(st.lists(st.just(0.0) | st.floats(1e-9, 1e9), min_size=1, max_size=9))
def test_every_value_lies_on_its_scale_between_at_least_two_marks(values):
    scale = scale_of(values)
    assert all(0 <= scale.at(value) <= 1 for value in values)
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
    assert scale.ticks == sorted(set(scale.ticks))
    assert 2 <= len(scale.ticks) <= 13


@pytest.mark.parametrize(
    ("values", "log", "ticks"),
    [
        ((100, 130), False, [100, 110, 120, 130]),
        ((1, 9), True, [1, 2, 5, 10]),
        ((0, 0), False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((1, 1e6), True, [10, 1000, 100_000]),
        ((50, 50), False, [49, 49.5, 50, 50.5, 51]),
    ],
)
def test_marks_are_round(values, log, ticks):
    scale = scale_of(values)
    assert (scale.log, scale.ticks) == (log, pytest.approx(ticks))


def test_labels_meet_neither_each_other_nor_points():
    page = Box(0, 0, 8, 4)
    dots = [Box(0.3 + 0.1 * number, 0.2 + 0.13 * number, 0.12, 0.12) for number in range(26)]
    dots += [Box(7.8, 3.8, 0.12, 0.12), Box(7.75, 3.75, 0.2, 0.2)]
    line = [Box(dot.left + 0.1, dot.top + 0.1, 0.02, 0.02) for dot in dots]
    labels = placed(dots, [(1.2 if number % 5 else 0.2, 0.15) for number in range(len(dots))], line, page)
    assert all(page.holds(label) for label in labels)
    assert not any(one.meets(other) for one, other in combinations(labels, 2))
    assert not any(label.meets(dot) for label in labels for dot in (*dots, *line))


def test_more_labels_than_a_page_holds_are_all_drawn():
    dots = [Box(0.1, 0.1, 0.1, 0.1)] * 40
    assert len(placed(dots, [(0.3, 0.15)] * 40, [], Box(0, 0, 0.5, 0.5))) == 40


def test_what_does_not_fit_is_hollow_and_the_rest_full():
    scene = pareto_scene(PLAN)
    dots = [shape for shape in scene.shapes if isinstance(shape, Block) and shape.radius]
    hollow = [dot for dot in dots if dot.fill == WHITE]
    assert (len(dots), len(hollow)) == (5 + 4, 1 + 1)  # with those that explain the signs
    chosen = max(dots, key=lambda dot: dot.width)
    [text] = [shape for shape in scene.shapes if isinstance(shape, Text) and shape.text == "3 chosen"]
    assert chosen.fill == chosen.edge == text.colour
    assert text.bold


def test_the_line_joins_what_none_beats():
    [line] = [shape for shape in pareto_scene(PLAN).shapes if isinstance(shape, Path) and shape.line == 1.2]
    assert len(line.points) == 3
    assert line.points == tuple(sorted(line.points))


def test_everything_lies_on_the_page_and_is_labelled():
    long = ", then ".join(f"{number}x{number} (2 stages) at 1769 MB" for number in range(1, 12))
    plan = replace(PLAN, alternatives=(*PLAN.alternatives, Alternative(long, 99, 300.0, 2e-7, fits=True, chosen=False)))
    scene = pareto_scene(plan)
    texts = [shape for shape in scene.shapes if isinstance(shape, Text)]
    assert all(0 < text.x < scene.width and 0 < text.y < scene.height for text in texts)
    words = "\n".join(text.text for text in texts).replace("\N{NO-BREAK SPACE}", " ")
    for wanted in ("dollars for a million queries", "milliseconds", "does not fit a function's package", "over redis"):
        assert wanted in words
    assert "then 11x11 (2 stages) at 1769 MB" in words


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_the_picture_is_a_file_of_its_kind_and_always_the_same(tmp_path, suffix):
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        draw_pareto(PLAN, file)
    one, other = (file.read_bytes() for file in files)
    assert one.startswith(SIGNATURES[suffix])
    assert one == other


def test_a_picture_of_no_known_kind_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"should end in \.png, \.svg, \.pdf"):
        draw_pareto(PLAN, tmp_path / "x.gif")


def test_a_plan_that_had_no_competition_has_a_picture_too(tmp_path):
    draw_pareto(competed(), tmp_path / "x.png")
    draw_pareto(replace(small_plan(), alternatives=(_FREE,)), tmp_path / "x.png")
