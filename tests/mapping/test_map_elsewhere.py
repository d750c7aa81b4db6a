"""The scripts of docs/how-to/map-elsewhere.md, as they stand there, against the real engines: `serfer.map`'s bits."""

import os
import re
import shutil
import signal
import site
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

import serfer
from serfer.local.server import free_ports
from tests.mapping.plans import read
from tests.mapping.test_statistics import gated
from tests.mapping.test_windows import two_outputs
from tests.raster.files import pixels, write
from tests.uv import UV, environment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "map-elsewhere.md"
SIZE = 410, 530
pytestmark = [pytest.mark.exact, pytest.mark.timeout(300)]


class Place:
    """A folder with an image, its plan, what `serfer.map` makes of them, and the scripts of the page."""

    def __init__(self, folder):
        self.folder, self.image, self.plan = folder, folder / "image.tif", folder / "plan"
        write(self.image, pixels(*SIZE))
        serfer.map_plan(gated(folder / "gated.onnx")[1], [SIZE], self.plan, window=32)
        serfer.map(self.image, self.plan, folder / "out.tif", workers="inprocess")
        for name, code in re.findall(r"```python\n# (\w+\.py)(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
            (folder / name).write_text(code.partition("\n")[2], encoding="utf-8")
        self.variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start(self, *command, **how):
        return subprocess.Popen([str(each) for each in command], cwd=self.folder, env=self.variables, text=True, **how)

    def check(self, name):
        path = self.folder / name
        result = np.load(path) if path.suffix == ".npy" else zarr.open_array(path)[:]
        np.testing.assert_array_equal(result, read(self.folder / "out.tif"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Make environments of engines, which find what SerFer needs in the tests' own; skip without a package index."""

    def make(*requirements):
        folder = tmp_path_factory.mktemp("engine")
        subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder], check=True)
        given = [UV, "pip", "install", "-q", "--python", folder / "bin" / "python", *requirements]
        installed = subprocess.run(given, env=environment(), capture_output=True, text=True, check=False)
        if installed.returncode:
            pytest.skip(f"{requirements[0]} cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "tests.pth").write_text("\n".join(site.getsitepackages()))
        return folder / "bin" / "python"

    return make


@pytest.fixture(scope="module")
def dask(python):
    return python("distributed>=2026.8", "dask[array]")


@pytest.mark.parametrize(
    ("script", "result"),
    [pytest.param("processes.py", "result.npy", marks=pytest.mark.weekly), ("to_zarr.py", "result.zarr")],
)
def test_processes(place, script, result):
    with place.start(sys.executable, script, place.image, place.plan, result) as process:
        assert process.wait(120) == 0
    place.check(result)


def test_dask_array_of_other_chunks(place, dask):
    zarr.create_array(place.folder / "image.zarr", data=pixels(*SIZE), chunks=(2, 77, 101), overwrite=True)
    with place.start(dask, "dask_array.py", "image.zarr", place.plan, "dask.zarr") as process:
        assert process.wait(120) == 0
    place.check("dask.zarr")


def test_dask_array_of_each_of_two_outputs(place, dask):
    serfer.map_plan(two_outputs(place.folder / "two.onnx"), [SIZE], place.folder / "two", window=32)
    report = serfer.map(place.image, place.folder / "two", place.folder / "two.tif", workers="inprocess")
    code = """import dask, dask.array, numpy, serfer
maps = serfer.map(dask.array.from_zarr("image.zarr"), "two")
numpy.savez("two.npz", **dask.compute(maps)[0])"""
    zarr.create_array(place.folder / "image.zarr", data=pixels(*SIZE), chunks=(2, 77, 101), overwrite=True)
    with place.start(dask, "-c", code) as process:
        assert process.wait(120) == 0
    found = np.load(place.folder / "two.npz")
    assert {*found} == {result.outputs[0] for result in report.results}
    for result in report.results:
        np.testing.assert_array_equal(found[result.outputs[0]], read(result.path), strict=True)


@contextmanager
def dask_cluster(place, dask, *options):
    """Start a scheduler and two workers of one thread; yield its address and the workers."""
    with ExitStack() as stack:

        def started(*command, **how):
            process = stack.enter_context(place.start(dask, "-m", *command, "--no-dashboard", **how))
            stack.callback(process.kill)
            return process

        scheduler = started(
            "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", stderr=subprocess.PIPE
        )
        address = next(found[0] for line in scheduler.stderr if (found := re.search(r"tcp://127\S+:\d+", line)))
        worker = "distributed.cli.dask_worker", address, "--nthreads", "1", *options
        yield address, [started(*worker, stderr=subprocess.DEVNULL) for _ in range(2)]


def mapped_by_dask(place, dask, address, half_way=lambda: None):
    """Run the page's script; return how many windows it had after the twentieth."""
    with place.start(dask, "with_dask.py", address, place.image, place.plan, "dask.npy", stdout=subprocess.PIPE) as job:
        for _ in range(20):
            assert job.stdout.readline()
        half_way()
        left = job.stdout.readlines()
        assert job.wait(120) == 0
    assert len(left) == len(serfer.windows(place.image, place.plan)) - 20
    place.check("dask.npy")


@pytest.mark.killed
def test_dask_with_a_worker_killed_half_way(place, dask):
    with dask_cluster(place, dask, "--no-nanny") as (address, workers):
        mapped_by_dask(place, dask, address, lambda: workers[0].send_signal(signal.SIGKILL))


@pytest.mark.weekly
@pytest.mark.killed
def test_dask_with_a_worker_that_runs_out_of_memory(place, dask):
    code = """
import threading
from pathlib import Path
import serfer
def hungry(self, statistics=None, run=serfer.MapWindow.run):  # Dask may load this twice
    if self.number == 30 and self.in_pass is None and not Path("eaten").exists():
        Path("eaten").touch()
        eaten = b"x" * 3_000_000_000
        threading.Event().wait(60)  # for the nanny, which ends the process before
        Path("survived").touch()
    return run(self, statistics)
serfer.MapWindow.run = hungry
"""
    (place.folder / "hungry.py").write_text(code, encoding="utf-8")
    with dask_cluster(place, dask, "--memory-limit", "1GB", "--preload", "hungry.py") as (address, _):
        mapped_by_dask(place, dask, address)
    assert (place.folder / "eaten").exists()
    assert not (place.folder / "survived").exists()


@pytest.mark.weekly
@pytest.mark.killed
def test_ray_with_a_node_killed_half_way(place, python):
    ray = python("ray>=2.50")
    code = """
import runpy, sys
from pathlib import Path
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
other = cluster.add_node(num_cpus=1)
sys.argv = ["with_ray.py", cluster.address, *sys.argv[1:]]
numbers = []
def counting(number, **_):
    numbers.append(number)
    if len(numbers) == 20:
        cluster.remove_node(other, allow_graceful=False)
runpy.run_path("with_ray.py", {"print": counting})
Path("numbers").write_text(str(sorted(numbers)))
"""
    (place.folder / "cluster.py").write_text(code, encoding="utf-8")
    with place.start(ray, "cluster.py", place.image, place.plan, "ray.npy") as script:
        assert script.wait(240) == 0
    numbers = [*range(len(serfer.windows(place.image, place.plan)))]
    assert (place.folder / "numbers").read_text() == str(numbers)
    place.check("ray.npy")


@pytest.fixture
def slurm(place, monkeypatch):
    """Run a cluster of this machine alone, of two processors, from a folder of its own."""
    if os.geteuid() or not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))):
        pytest.skip("Slurm takes root, and Debian's slurm-wlm, which `make weekly` installs where it can")
    (folder := place.folder / "slurm").mkdir()
    (key := folder / "key-file").write_bytes(os.urandom(128))
    key.chmod(0o600)
    ports, host = free_ports(2), socket.gethostname()
    (folder / "slurm.conf").write_text(
        f"ClusterName=one\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nAuthInfo=socket={folder}/socket,cred_expire=5\n"
        f"SlurmctldPort={ports[0]}\nSlurmdPort={ports[1]}\nStateSaveLocation={folder}/state\nMpiDefault=none\n"
        f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\nSlurmdSpoolDir={folder}/spool\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n"
        "SelectTypeParameters=CR_CPU\nSchedulerParameters=sched_interval=1\nSlurmdParameters=config_overrides\nRequeueExit=137\n"
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs=2\nPartitionName=all Nodes=ALL Default=YES\n"
    )
    monkeypatch.setitem(place.variables, "SLURM_CONF", str(folder / "slurm.conf"))
    files = [f"--{name}={folder}/{name}" for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")]
    with ExitStack() as stack, (folder / "log").open("w") as log:
        for daemon in ("munged", "--force", "--foreground", *files), ("slurmctld", "-D"), ("slurmd", "-D"):
            process = stack.enter_context(place.start(*daemon, stdout=log, stderr=log))
            stack.callback(process.terminate)
        yield


@pytest.mark.weekly
@pytest.mark.killed
@pytest.mark.usefixtures("slurm")
def test_slurm_with_a_task_killed_half_way(place):
    code = """
import os, signal
from pathlib import Path
def killed(number, **_):
    if os.environ["SLURM_ARRAY_TASK_ID"] == "3":
        Path("restarts").write_text(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if "SLURM_RESTART_COUNT" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
exec(Path("with_slurm.py").read_text(), {"print": killed})
"""
    (place.folder / "array_job.py").write_text(code, encoding="utf-8")
    with place.start(sys.executable, "array_job.py", place.image, place.plan, "slurm.zarr", "4") as script:
        assert script.wait(280) == 0
    assert (place.folder / "restarts").read_text() == "1"
    place.check("slurm.zarr")


@pytest.mark.weekly
def test_lithops_on_its_local_back_end(place, python, monkeypatch):
    lithops = python("lithops>=3.6")
    config = place.folder / "lithops.yaml"
    config.write_text("lithops: {backend: localhost, storage: localhost, telemetry: false}\n")
    own = {"PATH": f"{lithops.parent}:{os.environ['PATH']}", "HOME": str(place.folder), "TMPDIR": str(place.folder)}
    monkeypatch.setattr(place, "variables", {**place.variables, **own, "LITHOPS_CONFIG_FILE": str(config)})
    with place.start(lithops, "with_lithops.py", place.image, place.plan, "lithops.npy") as script:
        assert script.wait(240) == 0
    place.check("lithops.npy")
