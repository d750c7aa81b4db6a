"""`serfer study simulate` on a cluster's scenario."""

import json

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import UsageError
from tests.study.sim.cluster.worlds import TOML
from tests.study.sim.worlds import TOML as TARGETS


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TOML)
    return path


def called(*arguments):
    result = CliRunner().invoke(app, ["study", "simulate", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_a_line_for_each_policy(scenario):
    text = called("--scenario", scenario, "--policy", "infless", "--policy", "openfaas-plus", "--json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [one["policy"] for one in rows] == ["infless", "openfaas-plus"]
    for one in rows:
        assert one["met"] + one["late"] + one["dropped"] == one["requests"]
        assert [each["name"] for each in one["functions"]] == ["vehicles", "answers"]
        assert sum(one["batches"].values()) == pytest.approx(1.0, abs=1e-4)
    assert rows[0]["requests"] == rows[1]["requests"]


def test_infless_is_the_default_and_a_table_is_printed(scenario):
    text = called("--scenario", scenario, "--level", "rates")
    assert "infless" in text
    assert "requests per unit and second" in text


def test_a_picture_is_drawn(scenario, tmp_path):
    called("--scenario", scenario, "--level", "rates", "--policy", "batch", "--plot", tmp_path / "out.svg")
    text = (tmp_path / "out.svg").read_text()
    assert "<svg" in text


def test_load_is_for_functions_that_have_none(scenario):
    scenario.write_text(TOML.replace('load = "poisson:rate=100,hours=0.1"\n', ""))
    with pytest.raises(UsageError, match=r"functions\[1\] has no load"):
        called("--scenario", scenario)
    [row] = called("poisson:rate=7,hours=0.1", "--scenario", scenario, "--level", "rates", "--json").splitlines()
    assert json.loads(row)["functions"][1]["requests"] == pytest.approx(2 * 7 * 360, rel=0.1)


def test_a_load_that_no_function_takes_is_refused(scenario):
    with pytest.raises(UsageError, match=r"all 2 of .* have theirs: leave poisson:rate=7,hours=0\.1 away"):
        called("poisson:rate=7,hours=0.1", "--scenario", scenario)


def test_times_cut_the_loads_of_all_functions(scenario):
    [row] = called("--scenario", scenario, "--level", "rates", "--from", "60", "--until", "120", "--json").splitlines()
    one = json.loads(row)
    assert one["seconds"] == 60
    assert one["functions"][1]["requests"] == pytest.approx(2 * 100 * 60, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "break-even"), "others are of Lambda"),
        (("--policy", "all"), "others are of Lambda"),
        (("--spot",), "--spot is not for a cluster's scenario"),
        (("--seeds", "3"), "--seeds is not for a cluster's scenario"),
        (("--level", "tasks"), "a cluster has rates and queries"),
        (("--period-s", "0"), "--period-s is more than 0"),
    ],
)
def test_what_is_of_lambda_is_refused(scenario, arguments, message):
    with pytest.raises(UsageError, match=message):
        called("--scenario", scenario, *arguments)


@pytest.mark.parametrize("policy", ["batch", "infless"])
def test_a_clusters_policy_needs_a_clusters_scenario(scenario, policy):
    scenario.write_text(TARGETS)
    with pytest.raises(UsageError, match=rf"policy {policy} needs a cluster's scenario .* with \[\[servers\]\]"):
        called("poisson", "--scenario", scenario, "--policy", policy)
