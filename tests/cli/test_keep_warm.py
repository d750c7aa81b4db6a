"""--keep-warm of the commands that serve: what is refused before anything starts."""

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.cli.shared.service_options import with_keep_warm
from serfer.core.errors import UsageError
from serfer.settings import Settings


@pytest.mark.parametrize("command", [["serve"], ["serve", "--drivers", "2"]])
@pytest.mark.parametrize("windows", ["lhst", "lsth:gamma=2", "-5", "serfer.core.errors:UsageError"])
def test_windows_that_there_are_not_are_a_usage_error(command, windows):
    result = CliRunner().invoke(app, [*command, "net.onnx", f"--keep-warm={windows}"])
    assert isinstance(result.exception, UsageError) or result.exit_code == 2


@pytest.mark.parametrize("command", [["serve"], ["serve", "--drivers", "2"]])
@pytest.mark.parametrize("place", ["s3://", "ftp://x", ""])
def test_a_place_for_what_is_learnt_that_cannot_be_is_a_usage_error(command, place):
    result = CliRunner().invoke(app, [*command, "net.onnx", "--keep-warm=lsth", f"--policy-state={place}"])
    assert isinstance(result.exception, UsageError)
    assert "--policy-state is a directory, or s3://BUCKET/PREFIX" in str(result.exception)


def test_workers_in_process_are_always_warm():
    with pytest.raises(UsageError, match="always warm"):
        with_keep_warm(Settings(), "lsth", None, "inprocess")


def test_what_windows_learn_is_kept_where_the_policys_state_is():
    settings = with_keep_warm(Settings(), "hybrid:hours=4", "states", "local")
    assert (settings.keep_warm, settings.policy_state) == ("hybrid:hours=4", "states")
    assert with_keep_warm(Settings(), None, "states", "local").policy_state is None
    from_setting = with_keep_warm(Settings(keep_warm="lsth"), None, "states", "local")
    assert (from_setting.keep_warm, from_setting.policy_state) == ("lsth", "states")


def test_a_place_for_what_is_learnt_needs_something_that_learns():
    result = CliRunner().invoke(app, ["serve", "net.onnx", "--policy-state", "states"])
    assert isinstance(result.exception, UsageError)
    assert "--policy-state is about a pool" in str(result.exception)
