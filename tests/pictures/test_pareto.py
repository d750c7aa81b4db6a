import math
from dataclasses import replace
from itertools import combinations

import pytest

from serfer.core.errors import PlanError, UsageError
from serfer.core.plan import Alternative
from serfer.pictures import choices, draw_pareto
from serfer.pictures.labels import Box, placed
from serfer.pictures.pareto_figure import pareto_figure
from serfer.pictures.scene import WHITE
from tests.core.plans import small_plan

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


_FREE = Alternative("1", 1, 0.0, 0.0, fits=True, chosen=True)


def name(ms, tasks):
    return f"one function of {ms:g} MB" if tasks == 1 else f"{tasks} tasks"


def competed(*others):
    """A plan of 100 ms and 4 dollars a million that competed with others: (ms, dollars a million, tasks, fits)."""
    mine = Alternative("2x2 at 1769 MB, then 1 at 1769 MB", 5, 100.0, 4e-6, fits=True, chosen=True)
    made = [
        Alternative(
            f"one function of {ms:g} MB" if tasks == 1 else f"{tasks} tasks", tasks, ms, usd / 1e6, fits, chosen=False
        )
        for ms, usd, tasks, fits in others
    ]
    return replace(small_plan(), alternatives=(*made, mine))


PLAN = competed((60, 9, 9, True), (80, 5, 1, False), (110, 5, 7, True), (200, 1, 1, True))


def test_alternatives_are_numbered_by_time_and_compared():
    rows = choices(PLAN)
    assert [each.plan.ms for each in rows] == [60, 80, 100, 110, 200]
    assert [each.number for each in rows] == [1, 2, 3, 4, 5]
    assert [each.verdict for each in rows] == ["best", "does not fit", "chosen", "beaten", "best"]
    assert [each.label for each in rows] == ["1", "2 unsplit, 80 MB", "3 chosen", "4", "5 unsplit, 200 MB"]
    assert rows[0].usd == pytest.approx(9)


def test_equal_plans_and_plans_that_do_not_fit_dominate_none():
    assert [each.best for each in choices(competed((100, 4, 2, True), (50, 1, 1, False)))] == [False, True, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_impossible_numbers_are_refused(value):
    with pytest.raises(PlanError, match="impossible figures"):
        choices(competed((value, 1, 2, True)))


def test_a_plan_without_alternatives_is_refused():
    with pytest.raises(PlanError, match="plan competed with"):
        choices(replace(small_plan(), alternatives=()))


def test_labels_overlap_neither_each_other_nor_points():
    page = Box(0, 0, 8, 4)
    dots = [Box(0.3 + 0.1 * number, 0.2 + 0.13 * number, 0.12, 0.12) for number in range(26)]
    dots += [Box(7.8, 3.8, 0.12, 0.12), Box(7.75, 3.75, 0.2, 0.2)]
    line = [Box(dot.left + 0.1, dot.bottom + 0.1, 0.02, 0.02) for dot in dots]
    labels = placed(dots, [(1.2 if number % 5 else 0.2, 0.15) for number in range(len(dots))], line, page)
    assert all(page.holds(label) for label in labels)
    assert not any(one.meets(other) for one, other in combinations(labels, 2))
    assert not any(label.meets(dot) for label in labels for dot in (*dots, *line))


def test_all_labels_are_drawn_even_if_the_page_is_full():
    dots = [Box(0.1, 0.1, 0.1, 0.1)] * 40
    assert len(placed(dots, [(0.3, 0.15)] * 40, [], Box(0, 0, 0.5, 0.5))) == 40


def drawn(plan):
    figure = pareto_figure(plan)
    [axes] = figure.axes
    signs = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    return figure, axes, signs


def test_oversized_plans_are_hollow_and_the_chosen_one_is_large():
    figure, _, signs = drawn(PLAN)
    points = {line.get_xdata()[0]: line for line in signs}
    assert {ms: line.get_ydata()[0] for ms, line in points.items()} == pytest.approx(
        {60: 9, 80: 5, 100: 4, 110: 5, 200: 1}
    )
    assert [ms for ms, line in points.items() if line.get_markerfacecolor() == WHITE] == [80]
    largest = max(signs, key=lambda line: line.get_markersize())
    [label] = [text for text in figure.texts if text.get_text() == "3 chosen"]
    assert largest is points[100]
    assert label.get_color() == largest.get_markerfacecolor() == largest.get_markeredgecolor()
    assert label.get_weight() == "bold"


def test_the_line_joins_the_plans_that_are_not_dominated():
    _, axes, _ = drawn(PLAN)
    [line] = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert [*line.get_xdata()] == [60, 100, 200]


@pytest.mark.parametrize(("dollars", "scale"), [(1.0, "linear"), (0.1, "log")])
def test_an_axis_is_logarithmic_where_values_are_far_apart(dollars, scale):
    _, axes, _ = drawn(competed((60, 4.5, 9, True), (200, dollars, 1, True)))
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", scale)
    assert len(axes.get_xticks()) > 1
    assert ("logarithmic scale of dollars" in axes.get_xlabel()) == (scale == "log")


def test_every_text_lies_on_the_page_and_every_alternative_is_listed():
    long = ", then ".join(f"{number}x{number} (2 stages) at 1769 MB" for number in range(1, 12))
    plan = replace(PLAN, alternatives=(*PLAN.alternatives, Alternative(long, 99, 300.0, 2e-7, fits=True, chosen=False)))
    figure, axes, _ = drawn(plan)
    page = figure.bbox.extents
    for text in figure.texts:
        left, bottom, right, top = text.get_window_extent().extents
        assert page[0] <= left <= right <= page[2]
        assert page[1] <= bottom <= top <= page[3]
    words = "\n".join(text.get_text() for text in figure.texts)
    for wanted in ("over redis", "then 11x11 (2 stages) at 1769 MB", "one function of 80 MB", "100.0"):
        assert wanted in words
    assert axes.get_title("left") == "dollars for a million queries"
    assert "milliseconds" in axes.get_xlabel()
    assert "does not fit a function's package" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_labels_of_a_figure_do_not_overlap():
    plan = competed(*((60 + 3 * number, 9 - number / 4, 9, number % 3 > 0) for number in range(20)))
    figure, _, _ = drawn(plan)
    labels = [text.get_window_extent() for text in figure.texts if text.get_horizontalalignment() == "center"]
    assert len(labels) == 21
    assert not any(one.overlaps(other) for one, other in combinations(labels, 2))


@pytest.mark.parametrize(
    "suffix", [each if each == ".svg" else pytest.param(each, marks=pytest.mark.weekly) for each in SIGNATURES]
)
def test_the_picture_has_its_suffixs_format_and_is_reproducible(tmp_path, suffix):
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        draw_pareto(PLAN, file)
    one, other = (file.read_bytes() for file in files)
    assert one.startswith(SIGNATURES[suffix])
    assert one == other


def test_an_unknown_picture_format_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"should end in \.png, \.svg, \.pdf"):
        draw_pareto(PLAN, tmp_path / "x.gif")


def test_a_plan_that_is_its_only_alternative_has_a_picture(tmp_path):
    draw_pareto(competed(), tmp_path / "x.png")
    draw_pareto(replace(small_plan(), alternatives=(_FREE,)), tmp_path / "x.png")
