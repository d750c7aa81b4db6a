"""SerFer can be installed beside what its users have: a resolver finds versions for it and another package, both new.

Only metadata are read. A package whose caps admit no solution stands in docs/how-to/install.md with the cap.
"""

import os
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.uv import UV, environment

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
WITHOUT_WHEELS = ROOT / "tests" / "data" / "without_wheels.txt"
BASE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
# With the release that was the newest, or near it, in November 2026: without a bound, a resolver goes years back.
BESIDE = [
    *("aiobotocore>=3.10", "anomalib>=2.0", "apache-airflow>=3.3", "arq>=0.28", "bentoml>=1.4.40"),
    *("celery[redis]>=5.7", "label-studio>=1.23"),  # these cap redis-py, which SerFer does without
    *("dagster>=1.13", "dask>=2026.8", "datasets>=5.2", "distributed>=2026.8", "dvc[s3]>=3.67"),
    *("fastapi-users[redis]>=15.0.5", "fastapi[standard]>=0.160", "fiftyone>=1.22", "geopandas>=1.2", "gradio>=6.31"),
    *("kserve>=0.21", "lightning>=2.6", "limits[redis]>=5.8", "litserve>=0.2.19", "mlflow>=3.17", "mlserver>=1.7.1"),
    *("monai>=1.6", "moto>=5.2.5", "openvino>=2026.4", "optimum[onnxruntime]>=2.1", "prefect>=3.9", "rasterio>=1.5"),
    *("ray[serve]>=2.60", "rio-tiler>=9.4", "s3fs>=2026.9", "sagemaker>=3.27", "sahi>=0.12", "streamlit>=1.67"),
    *("tiatoolbox>=2.1.3", "timm>=1.0.31", "torchgeo>=0.10", "torchvision>=0.29", "transformers>=5.24"),
    *("tritonclient[http]>=2.73", "ultralytics>=8.4.190"),
]
CAPPED = {"inference>=1.8": "typer"}
"""What has no solution, and a package that it caps below our floor."""

variables = cache(environment)
pytestmark = [pytest.mark.weekly, pytest.mark.timeout(300)]


def resolve(*requirements):
    command = [UV, "pip", "compile", "-", "--quiet", "--no-build", "--no-header", "--no-annotate"]
    return subprocess.run(
        [*command, "--python-version", "3.12", "--python-platform", "linux", "--overrides", WITHOUT_WHEELS],
        input="\n".join(requirements),
        env=variables(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def base():
    if (done := resolve(*BASE)).returncode:
        assert "No solution found" not in done.stderr, done.stderr
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.parametrize("other", BESIDE)
def test_the_base_and_another_package_have_a_solution(other):
    done = resolve(*BASE, other)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("other", "capped"), CAPPED.items())
def test_a_package_without_a_solution_is_documented_with_its_cap(other, capped):
    done = resolve(*BASE, other)
    assert done.returncode, f"{other} fits now: move it to BESIDE, and out of install.md"
    assert capped in done.stderr
    assert f"`{Requirement(other).name}` (`{capped}" in PAGE


@pytest.mark.parametrize("order", [("multipart", "python-multipart"), ("python-multipart", "multipart")])
def test_forms_are_parsed_beside_python_multipart_which_has_a_module_of_the_same_name(order, tmp_path):
    for name in order:
        wanted = f"multipart=={version(name)}" if name == "multipart" else name
        install = [UV, "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, wanted]
        subprocess.run(install, env=variables(), check=True)
    assert (tmp_path / "multipart" / "__init__.py").exists()
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/api/test_uploads.py"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        tests, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
