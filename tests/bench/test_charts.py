"""Charts show every point of their curves, in their curves' colours, between axes that hold them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer_bench.core.charts import Chart, Curve, is_wide, order_chart, share_chart, thinned, time_chart
from serfer_bench.core.charts_figure import charts_figure
from serfer_bench.core.drawing import draw_charts

ROUNDS = [
    Curve("serfer", ((0.0, 40.0), (1.0, 60.0), (2.0, 50.0))),
    Curve("unsplit", ((0.0, 90.0), (1.0, 400.0))),
    Curve("serfer", ((0.5, 45.0),)),
]
LEGEND = ["serfer: p50 50", "unsplit: p50 90", "neither"]
STAMP = ["serfer bench burst", "2026-11-23"]


def axes_of(*charts):
    return charts_figure("title", charts, LEGEND, STAMP).axes


def test_curves_of_one_name_share_a_colour_and_show_all_their_points():
    [axes] = axes_of(time_chart(ROUNDS))
    assert [line.get_xydata().tolist() for line in axes.lines] == [[*map(list, curve.points)] for curve in ROUNDS]
    first, second, third = (line.get_color() for line in axes.lines)
    assert first == third != second


def test_a_dashed_curve_has_its_systems_colour():
    points = ((1.0, 1.0), (2.0, 2.0))
    [axes] = axes_of(order_chart([Curve("serfer", points), Curve("serfer", points, dashed=True)]))
    solid, dashed = axes.lines
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_color() == dashed.get_color()


def test_titles_legend_and_stamp_are_written_and_charts_lie_between_them():
    figure = charts_figure("alexnet: a burst", [order_chart(ROUNDS), share_chart(ROUNDS)], LEGEND, STAMP)
    [legend] = figure.legends
    assert [text.get_text() for text in figure.texts] == ["alexnet: a burst", *reversed(STAMP)]
    assert [text.get_text() for text in legend.get_texts()] == LEGEND
    assert [axes.get_title("left") for axes in figure.axes] == [
        "latency in order of completion (ms)",
        "share of queries answered within (share)",
    ]
    figure.draw_without_rendering()
    title, *stamp = (text.get_window_extent() for text in figure.texts)
    boxes = [*(axes.get_tightbbox() for axes in figure.axes), legend.get_window_extent()]
    for box in boxes:
        assert not any(box.overlaps(text) for text in (title, *stamp))
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
    assert not any(axes.get_tightbbox().overlaps(boxes[-1]) for axes in figure.axes)


@pytest.mark.parametrize("log", [False, True])
def test_an_axis_is_linear_from_0_or_logarithmic_with_round_ticks(log):
    curve = Curve("x", ((1.0, 30.0), (900.0, 80.0)))
    [axes] = axes_of(Chart("a", "b", "c", (curve,), x_log=log))
    low, high = axes.get_xlim()
    assert low < 1.0
    assert high > 900.0
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert (low == 0.0) != log
    assert ticks == pytest.approx([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] if log else [0, 200, 400, 600, 800])
    assert axes.xaxis.get_major_formatter()(1000.0, 0) == "1,000"
    assert (axes.get_xlabel() == "b, logarithmic scale") == log


def test_axis_keeps_to_decades_and_limits():
    [axes] = axes_of(Chart("a", "b", "c", (Curve("x", ((1e-3, 1.0), (1e4, 2.0))),), x_log=True))
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert 2 <= len(ticks) <= 9
    assert all(f"{tick:e}".startswith("1.000000e") for tick in ticks)
    [axes] = axes_of(Chart("a", "b", "%", (Curve("x", ((0.0, 30.0), (2.0, 80.0))),), x_max=9.0, y_max=100.0))
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 9.0), (0.0, 100.0))
    for axes in axes_of(time_chart([]), share_chart([Curve("x", ())]), order_chart([])):
        assert axes.get_xlim()[0] == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 1e9), st.floats(1e-9, 1e9)), min_size=1, max_size=9))
@settings(derandomize=True, max_examples=15)
def test_every_point_lies_between_the_axes(points):
    for axes in axes_of(time_chart([Curve("x", tuple(points))]), share_chart([Curve("x", tuple(points))])):
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for x, y in axes.lines[0].get_xydata():
            assert left <= x <= right
            assert bottom <= y <= top


@pytest.mark.parametrize(
    ("values", "wide"), [((1.0, 5.0), False), ((1.0, 5.1), True), ((0.0, 9.0), False), ((3.0,), False)]
)
def test_an_axis_is_logarithmic_from_a_factor_of_5(values, wide):
    assert is_wide(values) == wide


def test_long_curves_are_thinned_but_keep_their_ends():
    curve = Curve("x", tuple((float(k), 0.0) for k in range(10_000)))
    short = thinned(curve, 7)
    assert len(short.points) == 7
    assert (short.points[0], short.points[-1]) == (curve.points[0], curve.points[-1])
    assert thinned(short, 7) is short


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_charts_give_the_same_file(tmp_path, suffix):
    for name in "ab":
        draw_charts("$5 and $x$ \u3042", [time_chart(ROUNDS)], LEGEND, STAMP, tmp_path / f"{name}{suffix}")
    one, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in "ab")
    assert one == other
    assert b"2026-11-23T" not in one
