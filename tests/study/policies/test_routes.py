"""`serfer serve --route` with policies of the studies, and without these."""

from importlib.metadata import EntryPoints

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.control.policies import STUDY, policy_names
from serfer.core.errors import MissingExtraError, UsageError
from serfer.fleet.open_pool import choose_routing
from serfer_bench.study.policies import NAMES
from tests.fleet.test_open_pool import file as file  # noqa: PLC0414 - a fixture


def test_names_are_those_of_the_product_and_of_the_entry_points():
    assert {*NAMES} == {*policy_names()}
    assert {*STUDY} < {*NAMES}


def test_settings_behind_a_name_reach_the_policy(file):
    policy = choose_routing("mark:sl_min=0.99,m=50", "local", file, None).router().policy
    assert policy.name == "mark:sl_min=0.99,m=50"
    assert (policy.guarded._options.slo_met, policy.guarded._options.monitor_queries) == (0.99, 50)


def test_setting_out_of_bounds_ends_serve():
    options = ("--route", "mark:sl_min=98", "--instances", "local", "--scenario", "two-types")
    result = CliRunner().invoke(app, ["serve", *options])
    assert isinstance(result.exception, UsageError)
    assert "mark.sl_min should be 0 to 1" in str(result.exception)


@pytest.mark.parametrize("route", [*STUDY, "mark:sl_min=0.99"])
def test_route_without_the_studies_names_the_command_that_installs_them(file, monkeypatch, route):
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: EntryPoints([]).select(group=group))
    with pytest.raises(MissingExtraError, match=r"pip install \./bench") as raised:
        choose_routing(route, "local", file, None)
    assert "\n" not in str(raised.value)
