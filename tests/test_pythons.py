"""A wheel under each Python that is there: what needs no torch, and the splitter without it."""

import shutil
import subprocess

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
