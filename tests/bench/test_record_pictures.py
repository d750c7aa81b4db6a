"""Pictures of records: which rows and columns become which curves, and when they are drawn again."""

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import InputError
from serfer_bench.core.charts import Curve
from serfer_bench.core.tables import Table
from serfer_bench.records.pictures import Picture, TableChart
from serfer_bench.records.record import FOLDER, Figures, Record

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
FILE = "docs/pictures/latency.svg"
PICTURE = Picture(FILE, "Latency", (LINES, SHARES))


def test_rows_become_points_and_what_was_not_measured_is_dashed_from_the_last_that_was():
    chart = LINES.of(TABLES)
    assert chart.curves == (
        Curve("ours", ((8.0, 10.0), (1000.0, 1100.0))),
        Curve("theirs", ((8.0, 50.0),)),
        Curve("theirs", ((8.0, 50.0), (1000.0, 6250.0)), dashed=True),
    )
    [drawn] = Picture(FILE, "Latency", (LINES,)).drawn(TABLES)
    assert drawn == replace(chart, x_log=True, y_log=True)


def test_axes_of_one_label_are_all_logarithmic_where_their_values_together_range_far():
    each = [
        replace(SHARES, where={"load": ("burst",), "images": (images,)}, curve=("system",)) for images in ("8", "1,000")
    ]
    assert [chart.x_log for chart in Picture(FILE, "Shares", (each[0],)).drawn([Table(HEAD, BODY[:1])])] == [False]
    assert [(chart.x_log, chart.y_log) for chart in Picture(FILE, "Shares", tuple(each)).drawn(TABLES)] == 2 * [
        (True, False)
    ]


def test_an_empty_cell_is_not_drawn():
    rows = [(*row[:4], "" if row[1] == "8" else row[4], row[5]) for row in BODY]
    lines, shares = LINES.of([Table(HEAD, rows)]), SHARES.of([Table(HEAD, rows)])
    assert [curve.points for curve in lines.curves] == [((1000.0, 1100.0),), ((1000.0, 6250.0),)]
    assert shares.curves[0].points == ((20.0, 1.0),)


def test_without_a_column_of_values_a_row_is_a_distribution_over_its_quantiles():
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


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a record that has a picture, and a page that shows its table."""
    for folder in (FOLDER, "docs/pictures"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "rule.py").write_text("one = 1\n")
    record = Record("serfer x", "measured", "", "", {"rule.py": ""}, tables=(Figures(HEAD, BODY),), pictures=(PICTURE,))
    record.write(tmp_path / FOLDER / "one.json")
    (tmp_path / "docs" / "page.md").write_text("<!-- record: one table: 1 -->\n<!-- end -->\n")
    return tmp_path


def results(checkout, *options):
    return CliRunner().invoke(app, ["bench", "results", *options, "--checkout", str(checkout)])


def test_a_picture_is_drawn_once_and_again_when_its_figures_change(checkout):
    assert f"{FILE}: not what the records say" in str(results(checkout, "--check").exception)
    assert f"drew {FILE}" in results(checkout).stderr
    first = (checkout / FILE).read_text()
    assert re.search(r"<!-- measured: serfer x; .* -->", first)
    assert "drew" not in results(checkout).stderr
    assert results(checkout, "--check").exit_code == 0
    file = checkout / FOLDER / "one.json"
    file.write_text(file.read_text().replace("6,250", "6,500"))
    assert "drew" in results(checkout).stderr
    assert (checkout / FILE).read_text() != first
