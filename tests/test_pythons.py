"""A wheel under each Python that is there: what needs no torch, and the splitter without it. And a newer torch."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.e2e.small import split_small
from tests.test_packaging import PIP, ROOT, built


@pytest.mark.weekly
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_a_wheel_serves_and_splits_under_each_python_and_reads_a_plan_of_another(version, tmp_path):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"python{version} is not on PATH")
    split_small(tmp_path)
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    own = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*PIP, "--python", own, "install", "--only-binary=:all:", built(ROOT, tmp_path)], check=True)
    subprocess.run([own, ROOT / "tests" / "first_hour.py", tmp_path / "plan"], check=True)


@pytest.mark.weekly
@pytest.mark.parametrize("part", ["cli", "control", "cost", "fleet", "raster"])
def test_what_needs_no_torch_passes_under_python_3_13(part):
    """`make python313` runs what is quicker."""
    python = ROOT / ".venv" / "tests-python3.13" / "bin" / "python"
    if not python.exists():
        pytest.skip("make python313 has not made .venv/tests-python3.13")
    tests = ROOT / "tests" / part
    subprocess.run([python, "-m", "pytest", "-p", "tests.without_torch", "-q", tests], cwd=ROOT, check=True)


@pytest.mark.weekly
def test_networks_of_the_newest_torch_with_a_torchvision_are_split(tmp_path):
    """Of TORCH_INDEX alone, as for `make setup`: torch of another index may bring gigabytes of CUDA."""
    if not (index := os.environ.get("TORCH_INDEX")):
        pytest.skip("TORCH_INDEX names no index of torch's CPU builds: make weekly TORCH_INDEX=ADDRESS")
    newer = ("torch==2.14.*", "torchvision==0.29.*")
    install = [*PIP, "install", "--no-deps", "--only-binary=:all:", "--index-url", index, "--target", tmp_path, *newer]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if "No matching distribution found" in done.stderr:
        pytest.skip(f"the index of TORCH_INDEX has no {' and '.join(newer)}")
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "import torch; assert torch.__version__.startswith('2.14.') and torch.version.cuda is None"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    tests = ROOT / "tests" / "splitter" / "network"
    subprocess.run([sys.executable, "-m", "pytest", "-q", tests], cwd=ROOT, env=environment, check=True)
