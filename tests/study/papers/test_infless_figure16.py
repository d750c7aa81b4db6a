"""INFless' figure 16: what is run, and what is said about it."""

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer_bench.study.papers.infless.figure16 import LSTH, charts, notes, run
from serfer_bench.study.sim.simulate import LoadSpec
from tests.bench import running

pytestmark = pytest.mark.weekly

PERIODIC = LoadSpec("periodic:every_s=3600,hours=96")


def test_learnt_windows_waste_less_than_a_fixed_one_that_is_as_long_as_the_period():
    rows = {one.policy: one for one in run(PERIODIC, [0], 200.0, [*LSTH, "hybrid", "3600"])}
    for policy in (*LSTH, "hybrid"):
        assert rows[policy].cold <= 5
        assert rows[policy].idle_h < 0.4 * rows["3600"].idle_h
    assert rows["3600"].idle_by_authors > 1.5
    assert rows["3600"].idle_by_infless is None


def test_the_notes_compare_with_the_hybrid_policy_as_infless_and_as_its_authors_describe_it():
    rows = run(PERIODIC, [0], 200.0, ["lsth:gamma=0.5", "hybrid:hours=4", "hybrid", "300"])
    published, said = notes(rows)
    assert "21.9%" in published
    assert "24.3%" in published
    mine = rows[0]
    assert f"idle {mine.idle_by_infless:+.1%} by hybrid:hours=4" in said
    assert f"{mine.idle_by_authors:+.1%} by hybrid " in said
    (chart,) = charts(rows)
    assert [curve.name for curve in chart.curves] == ["fixed keep-alive", "lsth:gamma=0.5", "hybrid:hours=4", "hybrid"]


def test_the_command_runs_traces_in_place_of_generated_loads_and_draws_them(tmp_path):
    trace, picture = tmp_path / "few.csv", tmp_path / "few.png"
    trace.write_text("minute,requests\n" + "".join(f"{minute},3\n" for minute in range(0, 3000, 30)))
    given = ["--trace", str(trace), "--seeds", "1", "--policy", "lsth", "--policy", "300", "--picture", str(picture)]
    rows = running.rows("study", "paper", "infless", "--figure", "16", *given)
    assert [row["load"] for row in rows] == ["few", "few"]
    assert rows[0]["cold"] < rows[1]["cold"] == 100
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = CliRunner().invoke(app, ["study", "paper", "infless", "--figure", "16", "--policy", "lsht"])
    assert wrong.exit_code != 0


def test_a_public_trace_that_is_not_here_is_skipped_by_name(tmp_path):
    """Every command of a page runs without the traces."""
    gone = ["--trace", str(tmp_path / "infless_bursty.csv")]
    result = running.run("study", "paper", "infless", "--figure", "16", *gone)
    assert result.stdout == ""
    assert "skipped: infless_bursty: not here; get them with serfer study fetch-traces infless_bursty" in result.stderr
    typed = CliRunner().invoke(app, ["study", "paper", "infless", "--figure", "16", "--trace", "mine.csv"])
    assert typed.exit_code != 0
