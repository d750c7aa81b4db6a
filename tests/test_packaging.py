import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import serfer
from serfer.core import errors
from serfer.plan_directory import load_plan
from tests.e2e.small import split_small

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


def test_a_package_asks_for_the_versions_that_were_tested_and_for_no_next_major_version():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, wanted):
        if requirement.name == "torch":
            continue
        pinned = pins[canonicalize_name(requirement.name)]
        bounds = {one.operator: Version(one.version) for one in requirement.specifier}
        major, minor = pinned.release[:2]
        following = Version(f"{major + 1}") if major else Version(f"0.{minor + 1}")
        assert bounds == {">=": pinned, "<": following}, requirement


def recipe(*variables):
    """Return the commands that set everything up, which make only prints."""
    done = subprocess.run(
        ["/usr/bin/env", "make", "--dry-run", "--always-make", "setup", *variables],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if "pip install" in line]


def test_torch_alone_comes_from_the_index_that_make_is_given():
    assert not [line for line in recipe() if "--index-url" in line]
    [line] = [line for line in recipe("TORCH_INDEX=file:///wheels/cpu") if "--index-url" in line]
    assert line.endswith("torch==2.13.0 --index-url file:///wheels/cpu")
    assert recipe()[0].endswith("torch==2.13.0 ")  # before anything that asks for it


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--disable-pip-version-check", "--wheel-dir", str(out), str(ROOT)], check=True, cwd=out)
    return next(out.glob("*.whl"))


def test_a_wheel_carries_the_data_files_that_the_code_reads(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        f"{top}/py.typed" for top in ("bench", "drivers", "lambdas", "sam", "serfer", "splitter", "storage")
    } <= names
    assert {"serfer/core/costs/aws.toml", "serfer/local/lambda_/bootstrap.py", "sam/build/locks/worker.txt"} <= names
    assert not any(name.startswith(("tests/", "examples/", "docs/")) for name in names)


def test_what_users_import_is_exported_and_help_shows_no_addresses():
    tree = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert tree | {"split", "open", "Plan", "Preprocess", "Pipeline", "Client", "AsyncClient"} <= set(dir(serfer))
    assert all(getattr(serfer, name) is getattr(errors, name) for name in tree)
    for function in (serfer.split, serfer.open):
        assert " at 0x" not in str(inspect.signature(function))


NEWEST = ("onnxruntime", "numpy", "redis", "fastapi")
"""What a wheel's own test takes anew; torch and all else are those of this environment."""


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """A new virtual environment in which pip has installed the wheel, with the newest versions that it allows."""
    look = [sys.executable, "-m", "pip", "--retries", "1", "--timeout", "10", "index", "versions", NEWEST[0]]
    if (answer := subprocess.run(look, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no package index can be reached: {answer.stderr.strip().splitlines()[-1]}")
    home = tmp_path_factory.mktemp("elsewhere")
    venv.create(home, with_pip=True, symlinks=True)
    ours, theirs = Path(sysconfig.get_path("purelib")), home / "lib" / "python3.11" / "site-packages"
    for entry in ours.iterdir():
        anew = re.split("[-.]", entry.name)[0] in {"serfer", *NEWEST} or entry.name.startswith("__editable__")
        if not anew and not (theirs / entry.name).exists():
            (theirs / entry.name).symlink_to(entry)
    install = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True, cwd=home)
    return home / "bin"


@pytest.mark.deploy
def test_a_wheel_that_plain_pip_installed_classifies_on_local_workers(elsewhere, tmp_path):
    def serfer(*arguments):
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SERFER_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [elsewhere / "serfer", *map(str, arguments)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    (answer,) = serfer("classify", ROOT / "examples" / "images" / "chelsea.png", "--json")
    assert answer["images"][0]["predictions"][0]["label"] == "Egyptian cat"
    versions = {check["name"]: check["found"] for check in serfer("doctor", "--json")}
    newest = subprocess.run(
        [elsewhere / "pip", "index", "versions", "onnxruntime"], capture_output=True, text=True, check=True
    ).stdout
    assert f"onnxruntime ({versions['onnxruntime']})" in newest
    installed = int(versions["function package"].split(" ")[0].replace(",", ""))
    split_small(tmp_path)  # writes small.onnx
    serfer("split", tmp_path / "small.onnx", "--out", tmp_path / "own", "--json")
    assert load_plan(tmp_path / "own").limit.dependencies >= installed


USER = """
import numpy as np
import serfer
plan = serfer.split("net.onnx", np.zeros((1, 3, 8, 8), np.float32), preprocess="own.toml")
reveal_type(plan)
with serfer.open("plan") as pipeline:
    reveal_type(pipeline.last_report)
try:
    plan = serfer.split(7, grids=(2, 2), stages="auto")
except serfer.ModelError as error:
    reveal_type(error)
"""


@pytest.mark.deploy
@pytest.mark.parametrize("installed", ["editable", "wheel"])
def test_a_users_own_file_passes_strict_type_checks(installed, request, tmp_path):
    python = sys.executable if installed == "editable" else request.getfixturevalue("elsewhere") / "python"
    (tmp_path / "user.py").write_text(USER)
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for kind in ("serfer.core.plan.model.Plan", "serfer.core.report.QueryReport", "serfer.core.errors.ModelError"):
        assert f'Revealed type is "{kind}' in done.stdout


def test_continuous_integration_runs_what_the_readme_explains():
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    commands = [line.strip() for line in script.splitlines() if line.startswith("make ")]
    assert "make test" in commands
    for command in commands:
        assert command in readme
