"""`serfer study paper infaas --section 4.2` on few loads: the heuristic is never cheaper than the programme."""

import json

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app

pytestmark = pytest.mark.weekly


def test_the_heuristic_is_compared_with_the_programme_for_each_number_of_networks():
    drawn = ["--networks", "1", "--networks", "3", "--loads", "5"]
    arguments = ["study", "paper", "infaas", "--section", "4.2", *drawn, "--json"]
    rows = [json.loads(line) for line in CliRunner().invoke(app, arguments).output.splitlines()]
    assert [(row["networks"], row["loads"]) for row in rows] == [(1, 5), (3, 5)]
    for row in rows:
        assert 1 - 1e-9 <= row["ratio_median"] <= row["ratio_p90"] <= row["ratio_max"]
        assert 0 < row["program_ms"] <= row["program_max_ms"]
