"""Bugs in parts of the planner that a plan can do without."""

import logging

import numpy as np
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
    path.write_bytes(model.SerializeToString())
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


def test_what_the_planner_says_on_purpose_is_no_bug(tmp_path, monkeypatch, survived):
    def refuse(*_arguments):
        raise ModelError("no head")

    monkeypatch.setattr(package_fit, "list_alternatives", refuse)
    net = Net(3, 8, 8)
    path = tmp_path / "net.onnx"
    path.write_bytes(net.model(net.linear(net.flat("x"), 192, 5)).SerializeToString())
    with pytest.raises(ModelError, match="no head"):
        split(path, np.zeros((1, 3, 8, 8), np.float32), tmp_path / "plan")
    assert not survived.records


def test_a_bug_that_has_nothing_to_do_with_gangs_is_not_told_as_one_of_theirs(tmp_path, monkeypatch, survived):
    monkeypatch.setattr(package_fit, "choices_of", a_bug)
    net = Net(3, 8, 8)
    path = tmp_path / "net.onnx"
    path.write_bytes(net.model(net.linear(net.flat("x"), 192, 5)).SerializeToString())
    with pytest.raises(ValueError, match="broadcast"):
        split(path, out=tmp_path / "plan")
    assert not survived.records
