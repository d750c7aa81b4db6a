"""Charts: their points, colours and axes, and the rows and columns of records that they are drawn from."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.errors import InputError
from serfer_bench.core.charts import Chart, Curve, is_wide, order_chart, share_chart, thinned, time_chart
from serfer_bench.core.charts_figure import charts_figure
from serfer_bench.core.drawing import draw_charts
from serfer_bench.core.tables import Table
from serfer_bench.records.pictures import Picture, TableChart

ROUNDS = [
    Curve("serfer", ((0.0, 40.0), (1.0, 60.0), (2.0, 50.0))),
    Curve("unsplit", ((0.0, 90.0), (1.0, 400.0))),
    Curve("serfer", ((0.5, 45.0),)),
]
LEGEND = ["serfer: p50 50", "unsplit: p50 90", "neither"]
STAMP = ["serfer bench burst", "2026-11-23"]


def axes_of(*charts):
    return charts_figure("title", charts, LEGEND, STAMP).axes


def test_curves_of_one_name_share_a_colour_show_all_their_points_and_may_be_dashed():
    curves = [*ROUNDS, replace(ROUNDS[0], dashed=True)]
    [axes] = axes_of(order_chart(curves))
    assert [line.get_xydata().tolist() for line in axes.lines] == [[*map(list, curve.points)] for curve in curves]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "-", "None", "--"]  # a single point has none
    first, second, *others = (line.get_color() for line in axes.lines)
    assert others == [first, first] != [second, second]


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
    texts = [text.get_window_extent() for text in figure.texts]
    boxes = [*(axes.get_tightbbox() for axes in figure.axes), legend.get_window_extent()]
    assert not any(box.overlaps(text) for box in boxes for text in texts)
    assert all(figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(box.overlaps(boxes[-1]) for box in boxes[:-1])


@pytest.mark.parametrize("log", [False, True])
def test_an_axis_is_linear_from_0_or_logarithmic_with_round_ticks(log):
    curve = Curve("x", ((1.0, 30.0), (900.0, 80.0)))
    [axes] = axes_of(Chart("a", "b", "c", (curve,), x_log=log))
    low, high = axes.get_xlim()
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
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        draw_charts("$5 and $x$ \u3042", [time_chart(ROUNDS)], LEGEND, STAMP, file)
    one, other = (file.read_bytes() for file in files)
    assert one == other
    assert b"2026-11-23T" not in one


HEAD = ("load", "images", "system", "figures", "50% ms", "100% ms")
BODY = (
    ("burst", "8", "ours", "measured", "10", "20"),
    ("burst", "1,000", "ours", "measured", "1,100", "2,000"),
    ("burst", "8", "theirs", "measured", "50", "80"),
    ("burst", "1,000", "theirs", "extrapolated", "6,250", "10,000"),
    ("uniform", "8", "ours", "measured", "5", "6"),
)
TABLES = [Table(HEAD, BODY)]
LINES = TableChart(
    1, "latency", "images", "ms", ("system",), {"load": ("burst",)}, "images", "50% ms", dashed="extrapolated"
)
SHARES = TableChart(1, "share", "ms", "share", ("system", "load"), {"system": ("ours",), "images": ("8",)})
PICTURE = Picture("docs/pictures/latency.svg", "Latency", (LINES, SHARES))


def test_rows_become_points_and_what_was_not_measured_is_dashed_from_the_last_that_was():
    chart = LINES.of(TABLES)
    assert chart.curves == (
        Curve("ours", ((8.0, 10.0), (1000.0, 1100.0))),
        Curve("theirs", ((8.0, 50.0),)),
        Curve("theirs", ((8.0, 50.0), (1000.0, 6250.0)), dashed=True),
    )
    [drawn] = replace(PICTURE, charts=(LINES,)).drawn(TABLES)
    assert drawn == replace(chart, x_log=True, y_log=True)


def test_axes_of_one_label_are_all_logarithmic_where_their_values_together_range_far():
    burst = replace(SHARES, where={"load": ("burst",)}, curve=("system",))
    each = [replace(burst, where={**burst.where, "images": (images,)}) for images in ("8", "1,000")]
    [alone] = replace(PICTURE, charts=(each[0],)).drawn([Table(HEAD, BODY[:1])])
    assert not alone.x_log
    both = replace(PICTURE, charts=tuple(each)).drawn(TABLES)
    assert [(chart.x_log, chart.y_log) for chart in both] == 2 * [(True, False)]


def test_an_empty_cell_is_not_drawn_and_a_row_without_values_is_a_distribution():
    rows = [(*row[:4], "" if row[1] == "8" else row[4], row[5]) for row in BODY]
    lines, shares = LINES.of([Table(HEAD, rows)]), SHARES.of([Table(HEAD, rows)])
    assert [curve.points for curve in lines.curves] == [((1000.0, 1100.0),), ((1000.0, 6250.0),)]
    assert shares.curves[0].points == ((20.0, 1.0),)
    chart = SHARES.of(TABLES)
    assert chart.curves == (
        Curve("ours, burst", ((10.0, 0.5), (20.0, 1.0))),
        Curve("ours, uniform", ((5.0, 0.5), (6.0, 1.0))),
    )
    assert chart.y_max == 1.0


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"table": 2}, "picture 'latency': table 2: there are 1"),
        ({"y": "p50"}, "picture 'latency': there is no column p50"),
        ({"where": {"load": ("steady",)}}, "picture 'latency': no row is"),
        ({"y": "figures"}, "'measured' cannot be drawn"),
    ],
)
def test_a_chart_of_what_is_not_in_its_table_is_refused(change, fault):
    with pytest.raises(InputError, match=fault):
        replace(LINES, **change).of(TABLES)


def test_rows_whose_curves_have_one_name_are_one_curve():
    named = replace(LINES, names={"theirs": "ours"}, dashed="")
    assert named.of(TABLES).curves == (Curve("ours", ((8.0, 10.0), (1000.0, 1100.0), (8.0, 50.0), (1000.0, 6250.0))),)


def test_who_wins_is_drawn_from_tables_of_the_surface_alone(tmp_path):
    head = ("network", "px", "within ms", "2% cold")
    winners = Table(head, [("net", "224", "1,000", "split to 10, then none")])
    details = Table(("burst",), [("1",), ("1,000",)])
    picture = Picture("who.svg", "Who wins", form="winners")
    assert picture.draw([winners, details], "modelled", tmp_path)
    assert picture.shows([winners, details], tmp_path)
    other = replace(winners, body=[("net", "224", "1,000", "split")])
    assert not picture.shows([other, details], tmp_path)
    with pytest.raises(InputError, match="not the tables of serfer study planner surface"):
        picture.draw(TABLES, "modelled", tmp_path)
