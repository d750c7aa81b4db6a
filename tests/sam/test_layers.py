import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from serfer.core.errors import ModelError, UnavailableError
from serfer.core.wire import Crop, Task, encode_task
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.packaging.compiling import interpreter
from serfer.packaging.manifest import WORKER
from serfer.sam.build import layers
from serfer.sam.build.layers import check_size, driver_layer, function_directory, gpu_layer, weights_layer, worker_layer
from serfer.sam.build.tree import Built, built, seal, tree_digest
from serfer.sam.build.wheels import lock_file, pins
from serfer.sam.options import RUNTIMES, digest12, function_id, weights_id
from tests.sam.builds import files
from tests.sam.conftest import OPTIONS
from tests.splitter.models import split_two_stages

ROOT = Path(__file__).parents[2]
PACKAGE_LIMIT = 262_144_000
ALONE = ["-S", "-P", "-B", "-W", "error", "-c"]

WORKER_CODE = """
import sys, types
import serfer.storage.s3.store, serfer.storage.redis.store, serfer.storage.redis.cluster, serfer.storage.redis.iam
from serfer.lambdas import bootstrap
answer = bootstrap.handler({'task': sys.argv[1]}, types.SimpleNamespace(aws_request_id='1'))
loaded = {*sys.modules}
assert not {'torch', 'onnx', 'onnxscript', 'boto3', 'serfer.splitter'} & loaded, loaded
assert not [path for path in sys.path if 'site-packages' in path]
print(answer['report'])
"""

DRIVER_CODE = """
import sys
import serfer.api.entrypoints.daemon, serfer.api.entrypoints.function, serfer.api.entrypoints.aws_driver
import serfer.wiring.open_pipeline, serfer.drivers.stepfunctions.client
import serfer.storage.s3.store, serfer.storage.redis.store, serfer.storage.redis.cluster, serfer.storage.redis.iam
import serfer.storage.redis.resp
import serfer.registry.opening, serfer.registry.store
import boto3.session
from botocore.session import get_session
get_session().create_client('lambda', region_name='eu-west-1')
get_session().create_client('s3', region_name='eu-west-1').get_paginator('list_objects_v2')
boto3.session.Session().client('stepfunctions', region_name='eu-west-1')
from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
OTLPSpanExporter(endpoint='http://127.0.0.1:9')
assert type(context.get_current()).__name__ == 'Context'
from PIL import Image
loaded = {*sys.modules}
assert not {'torch', 'onnx', 'onnxruntime', 'onnxscript', 'typer', 'rich'} & loaded, loaded
assert not {'serfer.splitter', 'serfer.sam', 'serfer_bench'} & loaded, loaded
print('loaded')
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return split_two_stages(tmp_path_factory.mktemp("planned"))


def run(python, path, code, *arguments, **variables):
    done = subprocess.run(
        [str(python), *ALONE, code, *arguments],
        env={"PYTHONPATH": path, "PATH": os.defpath, "HOME": "/nonexistent", **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


def make(directory, name, artifacts, cwd=None):
    artifacts.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [shutil.which("make"), "--makefile", str(directory / "Makefile"), f"build-{name}"],
        env={"PATH": os.defpath, "ARTIFACTS_DIR": str(artifacts)},
        cwd=cwd or directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.deploy
def test_a_built_function_runs_a_task_under_lambdas_python_alone(worker, python313, planned, tmp_path):
    plan, directory = planned
    function_directory(tmp_path / "function", plan, directory, 0, 0)
    weights_layer(tmp_path / "weights", plan, directory, 0, 0)
    (piece,) = plan.stages[0].tiles[0].inputs
    crop = np.ones((1, 3, piece.rows.size, piece.cols.size), np.float32)
    task = Task(plan.digest, "0" * 32, 0, 0, 1, 60.0, Crop("float32", crop.tobytes()))
    text = json.loads(encode_task(task))["task"]
    path = f"{worker[0] / 'python'}:{tmp_path / 'weights' / 'python'}"
    root = str(tmp_path / "function")
    *_, report = run(python313, path, WORKER_CODE, text, LAMBDA_TASK_ROOT=root, SERFER_STORE="memory://")
    assert msgpack.unpackb(base64.b64decode(report))["counts"]["puts"] == 1


@pytest.mark.deploy
def test_a_driver_has_all_that_it_imports_and_nothing_of_the_command_line(driver, python313):
    assert run(python313, str(driver[0] / "python"), DRIVER_CODE) == ["loaded"]
    places = (driver[0] / "python", driver[0] / "python" / "serfer")
    names = {path.name for place in places for path in place.iterdir()}
    assert not {"torch", "onnx", "onnxruntime", "splitter", "sam", "serfer_bench", "tests", "typer", "rich"} & names
    assert {"drivers", "lambdas", "storage"} <= names


INSTANCE_CODE = """
import sys
import serfer.api.entrypoints.instance_daemon
from serfer.fleet.provisioners.auto_scaling import _connect
for service in ('autoscaling', 'ec2'):
    _connect(service, 'eu-west-1').close()
loaded = {*sys.modules}
assert not {'torch', 'onnx', 'onnxscript', 'typer', 'rich'} & loaded, loaded
assert not {'serfer.splitter', 'serfer.sam', 'serfer_bench'} & loaded, loaded
print('loaded')
"""


@pytest.mark.deploy
def test_an_instance_has_all_that_it_imports_and_onnx_runtime_as_a_wheel(driver, python313, cache, tmp_path):
    built = gpu_layer(tmp_path / "gpu", replace(OPTIONS, architecture="x86_64"), cache)
    assert built.bytes <= PACKAGE_LIMIT
    paths = f"{driver[0] / 'python'}:{tmp_path / 'gpu' / 'python'}"
    assert run(python313, paths, INSTANCE_CODE) == ["loaded"]
    (wheel,) = (tmp_path / "gpu" / "gpu").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert "onnxruntime/capi/libonnxruntime_providers_cuda.so" in archive.namelist()


@pytest.mark.deploy
def test_a_driver_carries_no_more_of_botocores_data_than_it_uses(driver):
    services = {path.name for path in (driver[0] / "python" / "botocore" / "data").iterdir() if path.is_dir()}
    assert services == {"autoscaling", "ec2", "lambda", "s3", "stepfunctions", "sts"}


@pytest.mark.deploy
def test_locked_onnx_runtimes_start_on_arm64():
    """Those before 1.26.0 end the process on import, since Lambda's arm64 environments do not list their processors."""
    for lock in ("worker", "runner"):
        [version] = [pin.version for pin in pins(lock_file(lock)) if pin.name == "onnxruntime"]
        assert tuple(map(int, version.split("."))) >= (1, 26), lock


@pytest.mark.deploy
def test_layers_leave_room(worker, driver):
    assert worker[1].bytes <= DEPENDENCY_ALLOWANCE
    assert driver[1].bytes <= 0.6 * PACKAGE_LIMIT


@pytest.mark.deploy
def test_a_worker_layer_equals_the_splitters_package(worker):
    top = {path.name for path in (worker[0] / "python").iterdir() if not path.name.endswith((".dist-info", ".py"))}
    assert {"serfer", "numpy", "onnxruntime", "msgpack", "botocore"} <= top
    assert not {"boto3", "torch", "onnx", "fastapi", "aiohttp", "redis"} & top
    packed = files(worker[0] / "python")
    assert all(WORKER.keeps(name) for name in packed if not name.endswith(".pyc"))
    assert {name for name, _ in WORKER.our_files()} <= packed


@pytest.mark.deploy
def test_modules_are_compiled_by_the_runtimes_own_python(worker, python313):
    assert worker[1].compiled_by.startswith("3.13.")
    packed = files(worker[0] / "python")
    assert {name.split(".")[-2] for name in packed if name.endswith(".pyc")} == {"cpython-313"}
    code = "import serfer.lambdas.worker as worker; print(open(worker.__cached__, 'rb').read()[4])"
    assert run(python313, str(worker[0] / "python"), code) == ["1"]  # by hash, and never checked


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return a cache of one's own, and make the worker layer a quick one: our code and no dependency."""
    monkeypatch.setitem(layers.CONTENTS, "worker", replace(WORKER, distributions=()))
    monkeypatch.setattr(layers, "wheels", lambda *_: ())
    return tmp_path / "cache"


def test_a_layer_without_a_local_compiler_is_left_uncompiled(tmp_path, small, monkeypatch):
    monkeypatch.setattr(layers, "interpreter", lambda _: None)
    assert worker_layer(tmp_path / "layer", OPTIONS, small).compiled_by is None
    assert not [name for name in files(tmp_path / "layer") if name.endswith(".pyc")]


def test_the_same_inputs_give_the_same_bytes(tmp_path, small):
    one = worker_layer(tmp_path / "a" / "layer", OPTIONS, small)
    other = worker_layer(tmp_path / "b" / "elsewhere" / "layer", OPTIONS, tmp_path / "another cache")
    assert one == other
    assert tree_digest(tmp_path / "a" / "layer") == tree_digest(tmp_path / "b" / "elsewhere" / "layer") == one.digest


@pytest.mark.parametrize(
    ("path", "harm"),
    [
        ("layer/python/serfer/lambdas/worker.py", lambda file: file.write_text("import os")),
        ("digest", Path.unlink),
        pytest.param("digest", lambda file: file.write_bytes(b"\xff"), marks=pytest.mark.weekly),
        pytest.param("layer", shutil.rmtree, marks=pytest.mark.weekly),
    ],
)
def test_a_layer_altered_in_the_cache_is_rebuilt(tmp_path, small, path, harm):
    one = worker_layer(tmp_path / "a", OPTIONS, small)
    [victim] = (small / "layers").glob(f"*/{path}")
    harm(victim)
    assert worker_layer(tmp_path / "b", OPTIONS, small) == one
    assert tree_digest(tmp_path / "b") == one.digest


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"file cannot be written: .*: choose another SERFER_CACHE_DIR"):
        worker_layer(tmp_path / "a", OPTIONS, tmp_path / "file")


@pytest.mark.deploy
def test_files_have_fixed_modes_and_a_valid_zip_time(worker):
    for path in worker[0].rglob("*"):
        status = path.stat()
        assert status.st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)
        assert status.st_mtime == 315_619_200


def test_a_digest_depends_on_contents_paths_and_executable_bits(tmp_path):
    def digest(name="a", text="x", mode=0o644, time=1):
        shutil.rmtree(tmp_path / "tree", ignore_errors=True)
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / name).write_text(text)
        (tmp_path / "tree" / name).chmod(mode)
        os.utime(tmp_path / "tree" / name, (time, time))
        return tree_digest(tmp_path / "tree")

    assert digest() == digest(mode=0o600) == digest(time=2)
    assert len({digest(), digest(name="b"), digest(text="y"), digest(mode=0o755)}) == 4


def test_a_functions_weights_are_copies_of_its_own_files_and_no_others(planned, tmp_path):
    plan, source = planned
    for stage in range(2):
        built = weights_layer(tmp_path / f"{stage}", plan, source, stage, 0)
        root = tmp_path / f"{stage}" / "python" / "serfer_plan"
        mine = {file.path for file in plan.stages[stage].files}
        assert files(root) == mine
        assert all((root / path).read_bytes() == (source / path).read_bytes() for path in mine)
        assert all((root / path).stat().st_ino != (source / path).stat().st_ino for path in mine)
        assert built.bytes == sum(file.bytes for file in plan.stages[stage].files)


def test_sams_make_puts_everything_in_its_place(planned, tmp_path):
    plan, source = planned
    name = digest12(plan)
    function_directory(tmp_path / "f", plan, source, 0, 0)
    weights_layer(tmp_path / "w", plan, source, 0, 0)
    for directory, target in (("f", function_id(name, 0, 0)), ("w", weights_id(name, 0, 0))):
        copied = shutil.copytree(tmp_path / directory, tmp_path / "scratch" / directory)  # where SAM runs it
        done = make(tmp_path / directory, target, tmp_path / "out" / directory, copied)
        assert done.returncode == 0, done.stderr
    assert files(tmp_path / "out" / "f") == {"plan.json"}
    assert json.loads((tmp_path / "out" / "f" / "plan.json").read_text())["digest"] == plan.digest
    assert files(tmp_path / "out" / "w") == {f"python/serfer_plan/{file.path}" for file in plan.stages[0].files}


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_text("x = 2")], ids=["missing", "altered"])
def test_make_refuses_an_incomplete_build(tmp_path, harm):
    file = tmp_path / "it" / "python" / "a file.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1")
    assert seal(tmp_path / "it", "Name") == built(tmp_path / "it") == Built(tree_digest(tmp_path / "it"), 5)
    assert make(tmp_path / "it", "Name", tmp_path / "out").returncode == 0
    harm(file)
    done = make(tmp_path / "it", "Name", tmp_path / "second")
    assert done.returncode != 0
    assert "a file.py" in done.stdout + done.stderr
    assert files(tmp_path / "second") == set()


@pytest.mark.deploy
def test_make_builds_a_whole_layer(worker, tmp_path):
    done = make(worker[0], "WorkerLayer", tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == files(worker[0]) - {"Makefile", "SHA256SUMS"}
    assert tree_digest(tmp_path / "python") == tree_digest(worker[0] / "python")


def test_an_oversized_package_is_named_with_its_parts_and_the_excess():
    assert check_size("0-0", Built("", 1), [Built("", PACKAGE_LIMIT - 1)], PACKAGE_LIMIT) == PACKAGE_LIMIT
    with pytest.raises(ModelError) as refused:
        check_size("0-0", Built("", 98_420_269), [Built("", 9_000), Built("", 170_000_000)], PACKAGE_LIMIT)
    for words in ("268,429,269 bytes", "6,285,269 more", "170,009,000 of plan, weights", "98,420,269 of code", "fp16"):
        assert words in str(refused.value)


def test_a_python_that_does_not_run_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / "python3.99").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.99").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter("python3.99") is None
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "python3.99").write_text("#!/bin/sh\necho 3.99.1\n")
    assert interpreter("python3.99") == tmp_path / "python3.99"


@pytest.mark.deploy
@pytest.mark.parametrize("kind", ["worker_layer", pytest.param("driver_layer", marks=pytest.mark.weekly)])
def test_layers_do_not_depend_on_process_and_directory(kind, cache, tmp_path):
    code = (
        "import sys; from pathlib import Path; from serfer.sam.build import layers;"
        "from tests.sam.conftest import OPTIONS;"
        f"print(layers.{kind}(Path(sys.argv[1]) / 'layer', OPTIONS, Path(sys.argv[1]) / 'cache'))"
    )
    digests = set()
    for seed in ("1", "2"):
        home = tmp_path / ("deeper/" * int(seed))
        shutil.copytree(cache / "wheels", home / "cache" / "wheels")
        done = subprocess.run(
            [sys.executable, "-c", code, str(home)],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC{seed}"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


@pytest.mark.deploy
@pytest.mark.parametrize(
    ("runtime", "architecture"),
    [
        pytest.param(*offered, marks=() if offered == ("python3.12", "arm64") else pytest.mark.weekly)
        for offered in itertools.product(RUNTIMES, ("x86_64", "arm64"))
    ],
)
def test_every_offered_worker_layer_stays_within_the_limit(runtime, architecture, cache, tmp_path):
    built = worker_layer(tmp_path / "layer", replace(OPTIONS, runtime=runtime, architecture=architecture), cache)
    assert built.bytes <= DEPENDENCY_ALLOWANCE
    assert (
        driver_layer(tmp_path / "driver", replace(OPTIONS, runtime=runtime, architecture=architecture), cache).bytes
        <= 0.6 * PACKAGE_LIMIT
    )
