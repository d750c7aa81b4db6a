import base64
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest

from serfer.build_cache import assembled, in_use
from serfer.core.checksum import CHECKSUM_BYTES
from serfer.packaging import bundle
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE, dependencies, directory_bytes, function_directory
from serfer.splitter.split import split
from serfer_bench.core.s3_server import S3Server
from tests.caches import new_cache
from tests.splitter.models import Net, split_two_stages

WEEK = 7 * 24 * 3600
DAY = 24 * 3600

RUN = """
import sys, types
from serfer.lambdas import bootstrap
loaded = sorted(sys.modules)
assert not {'torch', 'onnx', 'onnxscript', 'boto3', 'serfer.splitter'} & set(loaded), loaded
assert not any('site-packages' in path for path in sys.path), sys.path
answer = bootstrap.handler({'task': sys.argv[1]}, types.SimpleNamespace(aws_request_id='1'))
print(answer['report'])
"""


OPEN = """
import sys
from serfer.storage import open_store
open_store('redis://127.0.0.1:1/0').close()
assert not {'botocore', 'urllib3', 'dateutil'} & set(sys.modules), 'a store in Redis needs no S3'
for url, key in zip(sys.argv[1:], 'ab', strict=True):
    with open_store(url) as store:
        store.put(key, b'0123456789', 60)
        print(store.get(key, 3, 4), store.exists([key, 'c']))
        store.delete([key])
        print(store.exists([key]))
assert not {'boto3', 'pytest', 'hypothesis'} & set(sys.modules)
assert not any('site-packages' in path for path in sys.path), sys.path
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return new_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return split_two_stages(tmp_path_factory.mktemp("planned"))


@pytest.fixture(scope="module")
def functions(planned, cache):
    plan, directory = planned
    return [function_directory(plan, directory, stage, 0, dependencies(cache)) for stage in range(2)]


def run_alone(code, *arguments, root, **environment):
    """Run code in a Python that has no packages but those of `root`; return what it prints."""
    command = [sys.executable, "-S", "-B", "-P", "-c", code, *arguments]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_runs_a_task_from_its_own_directory_alone(planned, functions):
    plan, _ = planned
    region = plan.stages[0].tiles[0].inputs[0]
    crop = np.ones((1, 3, region.rows.size, region.cols.size), np.float32)
    task = [plan.digest, "0" * 32, 0, 0, 1, 60.0, ["float32", crop.tobytes()], False, [], None, "", None]
    text = base64.b64encode(msgpack.packb(task)).decode()
    root = str(functions[0])
    environment = {"PYTHONPATH": root, "LAMBDA_TASK_ROOT": root, "SERFER_STORE": "memory://", "PATH": os.defpath}
    printed = run_alone(RUN, text, root=root, **environment)
    report = msgpack.unpackb(base64.b64decode(printed.strip().splitlines()[-1]))
    assert report["counts"]["puts"] == 1
    cells = plan.stages[0].tiles[0].cells
    assert report["counts"]["bytes_put"] == sum(4 * 4 * cell.rect.area + CHECKSUM_BYTES for cell in cells)


def test_a_function_opens_an_s3_store_from_its_own_directory_alone(cache):
    root = str(dependencies(cache))
    with S3Server() as server:
        urls = server.url, f"s3://{server.bucket}/p"
        printed = run_alone(OPEN, *urls, root=root, PYTHONPATH=root, PATH=os.defpath, **server.environment)
    assert printed.splitlines() == ["b'3456' [True, False]", "[False]"] * 2


def test_no_function_contains_torch_or_unused_packages_or_data(functions, cache):
    root = dependencies(cache)
    assert directory_bytes(root) <= DEPENDENCY_ALLOWANCE == 117_000_000
    data = {path.name for path in (root / "botocore" / "data").rglob("*") if path.is_file()}
    assert data == {"partitions.json", "endpoint-rule-set-1.json.gz"}
    assert not (root / "serfer" / "storage" / "contract.py").exists()
    for directory in functions:
        names = {path.name for path in directory.iterdir()}
        assert not {"torch", "onnx", "onnxscript", "boto3"} & names
        assert {"serfer", "numpy", "onnxruntime", "msgpack", "plan.json"} <= names
        files = [path.relative_to(directory) for path in directory.rglob("*")]
        assert not [path for path in files if path.suffix == ".pyi" or "tests" in path.parts]
        assert {path.parts[1] for path in files if path.parts[0] == "serfer" and len(path.parts) > 1} <= {
            "core",
            "files.py",
            "lambdas",
            "plan_directory.py",
            "plug_ins.py",
            "s3.py",
            "storage",
            "__init__.py",
            "__pycache__",
        }


def test_a_function_has_its_own_stages_files_and_no_others(planned, functions):
    plan, source = planned
    for stage, directory in enumerate(functions):
        mine = {file.path for file in plan.stages[stage].files}
        files = {path.relative_to(directory).as_posix() for path in directory.glob("stage-*/*")}
        assert files == mine
        assert all((directory / path).read_bytes() == (source / path).read_bytes() for path in mine)


def test_the_same_inputs_reuse_the_same_directory(planned, functions, cache, tmp_path, monkeypatch):
    plan, directory = planned
    shutil.copytree(directory, tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.setattr(bundle, "assembled", lambda _: pytest.fail("was built again"))
    for place in (directory, tmp_path / "copy"):
        assert [function_directory(plan, place, stage, 0, dependencies(cache)) for stage in range(2)] == functions
    assert len(set(functions)) == 2


def test_another_plan_has_other_directories(functions, cache, tmp_path):
    net = Net(3, 8, 8, seed=1)
    plan = split(net.save(tmp_path, net.linear(net.flat("x"), 192, 5)), out=tmp_path / "plan")
    assert function_directory(plan, tmp_path / "plan", 0, 0, dependencies(cache)) not in functions


def test_a_change_of_the_code_changes_the_stamp(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    sources = [("a.py", tmp_path / "a.py")]
    before = bundle._stamp(sources)
    assert bundle._stamp(sources) == before
    os.utime(tmp_path / "a.py", (1, 1))
    assert bundle._stamp(sources) != before


@pytest.mark.parametrize(("free", "age"), [(10, WEEK), (9, DAY)])
def test_directories_unused_for_a_week_or_a_day_of_a_disk_that_is_nearly_full_are_removed(
    tmp_path, monkeypatch, free, age
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100, used=100 - free, free=free))
    old, young, used, new = (tmp_path / f"{name}-0123456789abcdef" for name in ("old", "young", "used", "new"))
    for directory, unused in {old: age + 60, young: age - 60, used: age + 60}.items():
        with assembled(directory):
            pass
        os.utime(directory, (time.time() - unused,) * 2)
    assert in_use(used)
    assert not in_use(tmp_path / "absent")
    with assembled(new) as directory:
        (directory / "file").write_text("x")
    assert {*tmp_path.iterdir()} == {new, used, young}
    with pytest.raises(KeyboardInterrupt), assembled(tmp_path / "failed"):
        raise KeyboardInterrupt
    assert not (tmp_path / "failed").exists()


def test_dependencies_larger_than_the_plans_reserve_still_run_locally(planned, tmp_path, monkeypatch):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(DEPENDENCY_ALLOWANCE + 1)  # as a newer ONNX Runtime may be
    files = {("serfer/core/big", tmp_path / "big")}
    monkeypatch.setattr(bundle, "WORKER", SimpleNamespace(**vars(bundle.WORKER), our_files=lambda: files))
    monkeypatch.setattr(bundle, "_dependency_files", lambda _: set())
    plan, directory = planned
    function = function_directory(plan, directory, 0, 0, dependencies(tmp_path / "cache"))
    assert (function / "serfer" / "core" / "big").stat().st_size > DEPENDENCY_ALLOWANCE
