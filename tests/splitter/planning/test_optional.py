"""Bugs in parts of the planner that a plan can do without."""

import logging

import onnx
import pytest

from serfer.core.errors import ModelError
from serfer.splitter import build, package_fit
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.planning import bounds, gang_chains
from serfer.splitter.split import split
from tests.splitter.models import Net, relative_error, unsplit

PLANNING = logging.getLogger("serfer.splitter.planning.optional")


@pytest.fixture
def survived(monkeypatch, caplog):
    """Let bugs be survived, and return what was logged of them."""
    monkeypatch.setattr(PLANNING, "handlers", [])
    return caplog


def a_bug(*_arguments, **_options):
    raise ValueError("could not broadcast\nshapes")


@pytest.mark.parametrize(
    ("module", "name", "part"),
    [
        (gang_chains.GangChains, "works", "the search for gangs"),
        (gang_chains.GangStages, "add_tail", "the search for gangs"),
        (bounds.StepBounds, "stages", "a bound of the search"),
        (package_fit, "list_alternatives", "the list of alternatives"),
        (package_fit, "explain_choice", "the explanation"),
        (package_fit, "_deployment_options", "the list of deployments"),
        (build, "cold_offer", "the choice of a cold plan"),
    ],
)
def test_a_bug_in_an_optional_part_costs_a_line_in_the_log_and_not_the_plan(
    tmp_path, monkeypatch, survived, module, name, part
):
    net = Net(3, 24, 20)
    x = net.conv("x", 3, 4, [3, 3], pads=[1, 1, 1, 1])
    x = net.conv(x, 4, 4, [3, 3], pads=[1, 1, 1, 1])
    model = net.model(net.linear(net.flat(net.op("GlobalAveragePool", x)), 4, 5))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    monkeypatch.setattr(module, name, a_bug)
    gang = "always" if module in (gang_chains.GangChains, gang_chains.GangStages) else "auto"
    plan = split(path, out=tmp_path / "plan", gang=gang)
    batch = net.batch_of(2)
    assert relative_error(run_tiles(plan, tmp_path / "plan", batch), unsplit(model, batch)) < 1e-6
    (line,) = {record.getMessage() for record in survived.records if record.levelno == logging.ERROR}
    assert line.startswith(
        f"a bug in SerFer, please report it: {part} failed and the plan does without (ValueError in "
    )
    assert line.endswith(": could not broadcast shapes)")


@pytest.mark.parametrize(("name", "error"), [("list_alternatives", ModelError), ("choices_of", ValueError)])
def test_refusals_and_bugs_elsewhere_are_not_told_as_bugs_of_a_part_that_a_plan_can_do_without(
    tmp_path, monkeypatch, survived, name, error
):
    def fail(*_arguments, **_options):
        raise error("no head")

    monkeypatch.setattr(package_fit, name, fail)
    net = Net(3, 8, 8)
    with pytest.raises(error, match="no head"):
        split(net.save(tmp_path, net.linear(net.flat("x"), 192, 5)), out=tmp_path / "plan")
    assert not survived.records
