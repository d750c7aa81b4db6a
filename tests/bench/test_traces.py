"""Tables of recorded loads that are not here are skipped by name, and the command succeeds."""

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import InputError

POLICIES = pytest.mark.parametrize("bench", ["optimum", "halves"])


def run(bench, folder, *loads):
    wanted = [word for load in loads for word in ("--load", load)]
    return CliRunner().invoke(app, ["study", "policies", bench, "--traces", str(folder), *wanted])


@POLICIES
@pytest.mark.parametrize("there", [(), ("twitter_2021-08_per_minute.csv",)], ids=["an empty folder", "another trace"])
def test_a_load_that_is_not_in_the_folder_is_skipped(tmp_path, bench, there):
    for name in there:
        (tmp_path / name).touch()
    done = run(bench, tmp_path, "nasa")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("skipped: nasa_http_1995_per_minute: not here; get them with")
    assert done.stderr.endswith(f"--out {tmp_path}\n")


@POLICIES
def test_without_the_folder_its_loads_are_skipped_and_it_is_named(tmp_path, bench):
    """A page's command has `--traces traces`, which a clean checkout has not."""
    done = run(bench, tmp_path / "traces", "twitter", "nasa")
    assert done.exit_code == 0
    assert f": there is no folder {tmp_path / 'traces'}; get them with" in done.stderr


@POLICIES
def test_a_load_that_nobody_knows_is_an_error(tmp_path, bench):
    done = run(bench, tmp_path, "facebook")
    assert isinstance(done.exception, InputError)
    assert "there are no loads" in str(done.exception)
