"""`serfer study paper NAME` finds the evaluation of each paper, by figure, table or section; the rest is weekly."""

from functools import partial

import pytest

from serfer.core.errors import ModelError, UsageError
from tests.bench.running import rows, run

paper = partial(rows, "study", "paper")


def test_serfer_reads_its_digits_before_it_trains(tmp_path):
    with pytest.raises(ModelError, match=r"0\.json cannot be read"):
        paper("serfer", "--data", tmp_path)


def test_infaas_shows_every_system_under_every_load_with_what_was_published():
    found = paper("infaas", "--figure", 6, "--seconds", 2, "--seeds", 1)
    assert len(found) == 3 * 8
    assert sum(bool(row["published"]) for row in found) == 13


@pytest.mark.parametrize("figure", [5, 7])
def test_a_figure_whose_public_trace_is_not_here_is_left_out_by_name(tmp_path, figure):
    given = ["--figure", str(figure), "--trace", str(tmp_path / "twitter_2021-08_per_minute.csv")]
    done = run("study", "paper", "infaas", *given)
    assert done.stdout == ""
    assert "skipped: twitter_2021-08_per_minute: not here; get them with serfer study fetch-traces" in done.stderr


def test_infless_publishes_rows_of_a_figure():
    found = paper("infless", "--figure=12", "--hours", 0.1, "--seeds", 1)
    assert {row["figure"] for row in found} >= {"12a", "12b"}
    assert {row["published"] for row in found if (row["figure"], row["system"]) == ("12b", "infless")} == {"1.00"}


@pytest.mark.parametrize("part", [("--figure", "9"), ("--table", "8"), ("--figure",), ("--section=4",)])
def test_a_part_that_is_not_redone_is_refused_with_those_that_are(part):
    with pytest.raises(UsageError, match=r"there are --figure 5, .*--table 7, --section 4\.2, not"):
        paper("infaas", *part)
