import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serfer.registry import open_registry
from serfer.settings import Settings
from tests.variants.digits import write_digits

PATIENCE = 300.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Two networks and 200 of the held-out images: enough to calibrate with some of them."""
    return write_digits(tmp_path_factory.mktemp("digits"), ("small", "medium"), images=200)


@pytest.fixture
def settings(tmp_path):
    return Settings(cache_dir=tmp_path / "cache")


@pytest.fixture
def kept(tmp_path):
    return lambda: open_registry(str(tmp_path / "registry"))


def given(files, size, app="digits", validation=None):
    arguments = [str(files.networks[size]), "--app", app, "--validation", str(validation or files.validation)]
    return [*arguments, "--preprocess", str(files.preprocess), "--labels", str(files.labels), "--output", "softmax"]


class Command:
    """A `serfer app register` that runs; `lines` are what it has said of its steps."""

    def __init__(self, arguments, environment):
        command = [sys.executable, "-m", "serfer", "app", "register", *arguments]
        self.lines = []
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, text):
        for line in self._process.stderr:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"it never said {text!r}: {self.lines}")

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=PATIENCE)

    def registered(self):
        printed, said = self._process.communicate(timeout=PATIENCE)
        self.lines += said.splitlines()
        assert self._process.returncode == 0, self.lines
        return json.loads(printed)


@pytest.fixture
def start(files, tmp_path):
    running = []

    def begin(size="small", *more, app="digits", validation=None):
        arguments = given(files, size, app, validation)
        environment = {
            **os.environ,
            "SERFER_REGISTRY": str(tmp_path / "registry"),
            "SERFER_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": str(ROOT),
        }
        running.append(Command([*arguments, "--json", *more], environment))
        return running[-1]

    yield begin
    for each in running:
        each.kill()
