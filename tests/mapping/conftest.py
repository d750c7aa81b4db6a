import json
from types import SimpleNamespace

import pytest

from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from tests.mapping.plans import HEIGHT, WIDTH, make_map_plan
from tests.raster.files import UTM, WHERE, pixels, write


@pytest.fixture(scope="session")
def plan(tmp_path_factory):
    """A map plan for images of 48 or 64 x 80 pixels."""
    directory = tmp_path_factory.mktemp("map") / "plan"
    make_map_plan(directory)
    return directory


@pytest.fixture
def serfer(capsys, monkeypatch):
    """Run a command in this process: its exit code, and what it printed."""

    def run(*arguments):
        monkeypatch.setenv("COLUMNS", "400")  # again where a test has undone it
        code = _exit_code(app, [str(each) for each in arguments], _Interrupt())
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=" ".join(captured.err.split()))

    return run


@pytest.fixture
def serfer_command(serfer):
    """The same, for modules that have the package under its name."""
    return serfer


@pytest.fixture
def report_of(serfer):
    """Run a command that has to succeed: its report."""

    def run(*command):
        done = serfer(*command, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out.splitlines()[-1])

    return run


@pytest.fixture
def map_image(report_of):
    """Map an image, or a folder of them, by a plan: the report."""

    def run(image, plan, out, *options):
        return report_of("map", image, "--plan", plan, "--out", out, "--workers", "inprocess", *options)

    return run


@pytest.fixture
def size():
    """Rows and columns of the image."""
    return HEIGHT, WIDTH


@pytest.fixture
def image(tmp_path, size):
    return write(tmp_path / "image.tif", pixels(*size), crs=UTM, transform=WHERE)


@pytest.fixture
def command(image, plan, tmp_path):
    return ("map", image, "--plan", plan, "--out", tmp_path / "result.tif", "--workers", "inprocess")
