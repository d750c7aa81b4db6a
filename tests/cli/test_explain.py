"""What `serfer explain` says of a plan."""

import re

from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import PlanError
from serfer.splitter.split import split
from tests.core.plans import write_plan
from tests.splitter.models import Net


def explained(directory):
    shown = CliRunner().invoke(app, ["explain", str(directory)])
    assert shown.exit_code == 0
    return shown.output


def written(net, output, home, dims=("N", "K")):
    path = home / "net.onnx"
    path.write_bytes(net.model(output, dims=dims).SerializeToString())
    return path


def test_a_halo_is_what_tiles_read_twice_though_strides_leave_rows_unread(tmp_path):
    net = Net(3, 9, 9)
    apart = net.conv("x", 3, 4, [1, 1], strides=[3, 3])
    path = written(net, net.conv(apart, 4, 2, [3, 3], pads=[1, 1, 1, 1]), tmp_path, ("N", 2, 3, 3))
    split(path, out=tmp_path / "plan", grids=["3x1", "3x1"], cuts=[apart])
    rows = re.findall(r"^stage-\d +3x1 .*", explained(tmp_path / "plan"), re.MULTILINE)
    assert [re.search(r"[+-]+\d+%", row)[0] for row in rows] == ["+0%", "+133%"]


def test_a_plan_without_its_explanation_is_refused_by_name(tmp_path):
    write_plan(tmp_path)
    (tmp_path / "explanation.json").unlink()
    for command in ("explain", "cost"):
        shown = CliRunner().invoke(app, [command, str(tmp_path)])
        assert isinstance(shown.exception, PlanError)
        assert "explanation.json is missing" in str(shown.exception)
    shown = CliRunner().invoke(app, ["explain", str(tmp_path), "--json"])
    assert '"why": ""' in shown.output
