"""`keep_warm` of the commands that serve: what is refused before anything starts."""

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.cli.shared.service_options import with_keep_warm
from serfer.core.errors import UsageError
from serfer.settings import Settings


@pytest.mark.parametrize("command", [["serve"], ["serve", "--drivers", "2"]])
@pytest.mark.parametrize("windows", ["lhst", "lsth:gamma=2", "-5", "serfer.core.errors:UsageError"])
def test_windows_that_there_are_not_are_a_usage_error(command, windows):
    result = CliRunner().invoke(app, [*command, "net.onnx", f"--set=keep_warm={windows}"])
    assert isinstance(result.exception, UsageError) or result.exit_code == 2


def test_workers_in_process_are_always_warm():
    with pytest.raises(UsageError, match="always warm"):
        with_keep_warm(Settings(), "lsth", "inprocess")


def test_the_option_wins_over_the_setting():
    assert with_keep_warm(Settings(keep_warm="lsth"), "hybrid:hours=4", "local").keep_warm == "hybrid:hours=4"
    assert with_keep_warm(Settings(keep_warm="lsth"), None, "local").keep_warm == "lsth"
