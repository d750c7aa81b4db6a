from types import SimpleNamespace

import pytest

from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt


@pytest.fixture
def serfer(capsys, monkeypatch):
    """Run a command in this process: its exit code, and what it printed."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments, interrupt=None):
        code = _exit_code(app, list(arguments), interrupt or _Interrupt())
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run
