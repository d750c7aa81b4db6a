"""A session's memory stays what its first run took, where windows are as large as memory allows."""

import subprocess
import sys

import grimp
import numpy as np
import onnx
import pytest

import serfer
from serfer.lambdas.worker import Worker
from serfer.packaging.manifest import WORKER, files_of
from serfer.plan_directory import load_plan
from serfer.storage.memory import MemoryStore
from tests.mapping.plans import make_map_plan
from tests.splitter.models import Net

SIDE, CHANNELS = 512, 8


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The plan of a network of four convolutions, whose maps are 8 MiB."""
    home = tmp_path_factory.mktemp("plan")
    net, x = Net(3, SIDE, SIDE), "x"
    for before in (3, *[CHANNELS] * 3):
        x = net.conv(x, before, CHANNELS, [3, 3], pads=[1] * 4)
    onnx.save(net.model(x, dims=("N", CHANNELS, SIDE, SIDE)), home / "net.onnx")
    example = np.zeros((1, 3, SIDE, SIDE), np.float32)
    serfer.split(home / "net.onnx", example, out=home / "plan", grids=(1, 1), stages=1, cold_plan="never")
    return home / "plan"


@pytest.mark.parametrize("one_block", [False, True])
def test_later_runs_of_a_session_take_no_more_memory_than_its_first(directory, one_block):
    code = f"""
import numpy as np
from pathlib import Path
from serfer.lambdas.sessions import SessionCache
from serfer.plan_directory import load_plan
def reserved():
    return int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) // 1024
directory = Path({str(directory)!r})
[stage] = load_plan(directory).stages
[tile] = stage.tiles
cache, taken = SessionCache(directory, 1, one_block={one_block}), []
session = cache.get(stage, tile)
image = {{session.get_inputs()[0].name: np.zeros((1, 3, {SIDE}, {SIDE}), np.float32)}}
for _ in range(3):
    cache.run(stage, tile, image)
    taken.append(reserved())
print(taken[2] - taken[0])
"""
    more_mb = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    if one_block:
        assert more_mb > 8, "ONNX Runtime's block comes on top: else the worker need not do without it"
    else:
        assert more_mb < 2


def test_windows_are_computed_without_a_block_of_all_memory_and_other_tiles_with_one(directory, tmp_path):
    make_map_plan(tmp_path / "map")
    for home, one_block in ((directory, True), (tmp_path / "map", False)):
        plan = load_plan(home)
        worker = Worker(plan, home, MemoryStore(), "here", threads=1, init_ms=0.0)
        [stage] = plan.stages
        session = worker._sessions.get(stage, stage.tiles[0])
        assert session.get_session_options().enable_mem_pattern is one_block


def test_a_functions_package_has_every_serfer_module_that_its_worker_imports():
    graph = grimp.build_graph("serfer", exclude_type_checking_imports=True, cache_dir=None)
    imported = {"serfer.lambdas.bootstrap", *graph.find_upstream_modules("serfer.lambdas", as_package=True)}
    packaged = {
        name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for name, _ in files_of(WORKER.packages)
    }
    assert imported - packaged == set()
