"""`keep_warm` of the commands that serve: what is refused before anything starts."""

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import UsageError


@pytest.mark.parametrize("command", [["serve"], ["serve", "--drivers", "2"]])
@pytest.mark.parametrize("windows", ["lhst", "lsth:gamma=2", "-5", "serfer.core.errors:UsageError"])
def test_windows_that_there_are_not_are_a_usage_error(command, windows):
    result = CliRunner().invoke(app, [*command, "net.onnx", f"--set=keep_warm={windows}"])
    assert isinstance(result.exception, UsageError) or result.exit_code == 2
