from types import SimpleNamespace

import onnx
import pytest

from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from tests.e2e.small import small_onnx


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "small.onnx"
    onnx.save(small_onnx(), path)
    return path


@pytest.fixture
def serfer(capsys, monkeypatch):
    """Run a command in this process: its exit code, and what it printed."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments, interrupt=None):
        code = _exit_code(app, list(arguments), interrupt or _Interrupt())
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run
