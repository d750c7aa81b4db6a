import itertools
import json
from dataclasses import dataclass

import pytest

from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.raster import ResultParts
from tests.mapping.plans import HEIGHT, WIDTH, close_opened, make_map_plan, map_command
from tests.raster.files import UTM, WHERE, pixels, write


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end():
    yield
    close_opened()


@pytest.fixture(scope="session")
def plan(tmp_path_factory):
    """A map plan for images of 48 or 64 x 80 pixels."""
    directory = tmp_path_factory.mktemp("map") / "plan"
    make_map_plan(directory)
    return directory


@dataclass(frozen=True)
class Ended:
    """A command's exit code and what it printed; `err` without line ends."""

    code: int
    out: str
    err: str

    def ends(self, code, *words):
        assert self.code == code, self.err
        assert [each for each in words if each not in self.err] == [], self.err
        return self

    @property
    def report(self):
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def serfer(capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setenv("COLUMNS", "400")  # again where a test has undone it
        code = _exit_code(app, [str(each) for each in arguments], _Interrupt())
        captured = capsys.readouterr()
        return Ended(code, captured.out, " ".join(captured.err.split()))

    return run


@pytest.fixture
def report_of(serfer):
    return lambda *command: serfer(*command, "--json").ends(0).report


@pytest.fixture
def map_image(report_of):
    return lambda *given: report_of(*map_command(*given))


@pytest.fixture
def before_part(monkeypatch):
    """Have something be raised, or done, before the part that comes after so many is written."""

    def patch(count, act):
        put, calls = ResultParts.put, itertools.count()

        def acting(parts, number, values):
            if next(calls) == count:
                if isinstance(act, BaseException):
                    raise act
                act()
            put(parts, number, values)

        monkeypatch.setattr(ResultParts, "put", acting)

    return patch


@pytest.fixture
def size():
    return HEIGHT, WIDTH


@pytest.fixture
def image(tmp_path, size):
    return write(tmp_path / "image.tif", pixels(*size), crs=UTM, transform=WHERE)


@pytest.fixture
def command(image, plan, tmp_path):
    return map_command(image, plan, tmp_path / "result.tif")
