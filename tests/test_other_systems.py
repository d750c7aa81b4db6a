"""The parts that macOS should run, without what only Linux has: names are removed, /proc and /sys are not there."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from serfer import Client
from tests.e2e.small import small_onnx
from tests.mapping.networks import Network
from tests.raster.files import pixels, write

ROOT = Path(__file__).parents[1]
IMAGE = ROOT / "examples" / "images" / "chelsea.png"

RUN = """
import asyncio, ctypes, fcntl, json, os, resource, select, signal, socket, subprocess, sys, sysconfig, time
import urllib.request

sysconfig.get_config_vars()  # it reads a file that is named after the system

LINUX = {
    fcntl: ("F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS"),
    os: (
        "sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "eventfd", "copy_file_range", "splice",
        "posix_fadvise", "posix_fallocate", "fdatasync", "setns", "unshare", "O_DIRECT", "O_TMPFILE",
    ),
    resource: ("prlimit",),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    socket: ("AF_NETLINK", "SOCK_SEQPACKET", "SO_PEERCRED", "AF_PACKET"),
    time: ("CLOCK_BOOTTIME",),
}
for module, names in LINUX.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys/")):
        raise FileNotFoundError(2, "this is not Linux", arguments[0])

sys.addaudithook(refuse)
from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
for command in json.loads(sys.argv[1]):
    if code := _exit_code(app, command, _Interrupt()):
        sys.exit(code)
"""


def command(*commands):
    return [sys.executable, "-c", RUN, json.dumps([[str(word) for word in words] for words in commands])]


@pytest.fixture
def variables(tmp_path):
    return {**os.environ, "SERFER_CACHE_DIR": str(tmp_path / "cache")}


def test_networks_are_split_mapped_and_asked(tmp_path, variables):
    (tmp_path / "small.onnx").write_bytes(small_onnx().SerializeToString())
    np.save(tmp_path / "batch.npy", np.zeros((1, 3, 34, 34), np.float32))
    network = Network()
    network.conv("image", (3, 3), pads=(1, 1, 1, 1))
    network.save(tmp_path / "map.onnx")
    image = write(tmp_path / "image.tif", pixels(48, 80)[:1])
    plan, maps, options = tmp_path / "plan", tmp_path / "maps", ("--channels", "1", "--preprocess")
    description = tmp_path / "map.toml"
    description.write_text('channels = "L"\nscale = 1.0\nmean = [0.0]\nstd = [1.0]\n')
    commands = [
        ["split", tmp_path / "small.onnx", "--grids", "2x2,1", "--out", plan],
        ["classify", IMAGE, tmp_path / "small.onnx"],
        ["run", tmp_path / "batch.npy", "--plan", plan, "--out", tmp_path / "answers"],
        ["map-plan", tmp_path / "map.onnx", "--size", "48x80", *options, description, "--out", maps],
        ["map", image, "--plan", maps, "--out", tmp_path / "result.tif"],
    ]
    done = subprocess.run(command(*commands), env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "result.tif").stat().st_size > 48 * 80


def test_a_file_is_served(tmp_path, variables):
    (tmp_path / "small.onnx").write_bytes(small_onnx().SerializeToString())
    serve = ["serve", tmp_path / "small.onnx", "--port", "0", "--json"]
    with subprocess.Popen(command(serve), env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            with Client(json.loads(process.stdout.readline())["url"]) as client:
                assert client.classify(IMAGE).images[0].predictions
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode in {0, 128 + signal.SIGTERM}


ONLY_LINUX = re.compile(
    r"/proc\b|/sys/|prctl|pidfd|memfd|eventfd|AF_NETLINK|sched_[gs]etaffinity|O_TMPFILE|F_SETPIPE_SZ|inotify_"
)
NEED_LINUX = {
    "serfer/system.py": "the one place of what the other parts need",
    "serfer/local": "local workers, servers of this machine and several drivers",
    "serfer/fleet/provisioners/local.py": "processes of a pool on this machine",
    "lambdas/bootstrap.py": "a function of Lambda",
    "lambdas/model_stream.py": "a stage's function has no serfer/system.py; elsewhere its pipe has the usual size",
    "storage/file/exchange.py": "the same; elsewhere it looks every 20 ms",
}
"""Where names that only Linux has may stand, and why."""


def has_what_only_linux_has(path):
    """Return whether a module's code names it; comments and docstrings may."""
    text = path.read_text(encoding="utf-8")
    if not ONLY_LINUX.search(text):
        return False
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            node.value = ast.Constant("")
    return bool(ONLY_LINUX.search(ast.unparse(tree)))


def test_what_only_linux_has_stands_in_few_places():
    packages = ("serfer", "splitter", "drivers", "lambdas", "storage", "sam")
    paths = {path for name in packages for path in (ROOT / name).resolve().rglob("*.py")}
    found = {path.relative_to(ROOT).as_posix() for path in paths if has_what_only_linux_has(path)}
    assert "serfer/system.py" in found
    assert sorted(name for name in found if not any(name.startswith(place) for place in NEED_LINUX)) == []
