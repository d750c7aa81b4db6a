"""`serfer study paper infaas --table 7` on few queries: every mix of states, beside the published figures."""

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from tests.bench import running

pytestmark = pytest.mark.weekly


COMMAND = ("study", "paper", "infaas", "--table", "7", "--queries", "100")


def test_selections_are_timed_for_every_mix_of_states_beside_infaas():
    rows = running.rows(*COMMAND)
    assert len(rows) == 15
    assert {row["variants"] for row in rows} == {200}
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in rows)
    published = {(row["states"], row["query"]): row["published_ms"] for row in rows}
    assert published["active", "asked"] == pytest.approx(2.2)
    assert published["overloaded", "asked"] == pytest.approx(3.5)
    assert published["mixed", "any"] is None


def test_a_bound_that_is_broken_is_a_wrong_answer():
    assert CliRunner().invoke(app, [*COMMAND, "--at-most", "0.0001"]).exit_code == 1
