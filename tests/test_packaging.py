import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_generic_top_level_names_can_never_be_uploaded():
    assert "Private :: Do Not Upload" in PROJECT["project"]["classifiers"]


def test_every_package_is_listed_by_name_and_none_is_forgotten():
    listed = PROJECT["tool"]["setuptools"]["packages"]
    found = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for top in ("bench", "drivers", "lambdas", "sam", "serfer", "splitter", "storage")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert set(listed) == found


def test_every_requirement_is_pinned_exactly_and_names_no_registry():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        assert line.count("==") == 1, line
        assert "://" not in line
        assert "@" not in line


def test_torch_is_pinned_to_the_version_that_is_installed_first():
    pinned = [item for item in PROJECT["project"]["dependencies"] if item.startswith("torch==")]
    assert pinned == ["torch==2.13.0"]
    assert f"install --quiet --disable-pip-version-check {pinned[0]}" in (ROOT / "Makefile").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--disable-pip-version-check", "--wheel-dir", str(out), str(ROOT)], check=True, cwd=out)
    return next(out.glob("*.whl"))


def test_a_wheel_carries_the_data_files_that_the_code_reads(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"serfer/core/aws.toml", "serfer/py.typed", "serfer/local/bootstrap.py", "sam/locks/worker.txt"} <= names
    assert not any(name.startswith(("tests/", "examples/", "docs/")) for name in names)


def test_continuous_integration_runs_what_the_readme_explains():
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    commands = [line.strip() for line in script.splitlines() if line.startswith("make ")]
    assert "make test" in commands
    for command in commands:
        assert command in readme
