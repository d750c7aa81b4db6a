import importlib.metadata
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import serfer
from serfer.core import errors
from serfer.plan_directory import load_plan
from serfer.sam.build.wheels import LAYERS, lock_file, wheels
from serfer.settings import load_settings
from tests.e2e.small import split_small

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = tomllib.loads((ROOT / "serfer" / "client" / "pyproject.toml").read_text())
BENCH = tomllib.loads((ROOT / "bench" / "pyproject.toml").read_text())
PINS = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
IMAGE = ROOT / "examples" / "images" / "chelsea.png"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.mark.exact
def test_every_requirement_is_pinned_exactly_and_names_no_registry():
    assert PINS
    for line in PINS:
        assert line.count("==") == 1, line
        assert "://" not in line
        assert "@" not in line


def test_the_oldest_torch_and_torchvision_of_the_metadata_are_those_that_tests_run_with():
    [tested] = re.findall(r" --no-compile torch==(\S+) ", (ROOT / "Makefile").read_text())
    torch, torchvision = map(importlib.metadata.version, ("torch", "torchvision"))
    assert oldest("split", "torch") == torch.partition("+")[0] == tested
    assert oldest("zoo", "torchvision") == torchvision
    [wanted] = [each for each in map(Requirement, importlib.metadata.requires("torchvision")) if each.name == "torch"]
    assert wanted.specifier.contains(Version(torch).public)


def oldest(extra, name):
    wanted = map(Requirement, PROJECT["project"]["optional-dependencies"][extra])
    [version] = [bound.version for each in wanted if each.name == name for bound in each.specifier if ">" in str(bound)]
    return version


def test_requirements_hold_pins_and_end_at_a_major_version():
    pins = {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in PINS)}
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    tools = {Requirement(text).name for text in extras["dev"]}  # users of SerFer need none
    wanted = [*project["dependencies"], *chain.from_iterable(extras.values())]
    for requirement in map(
        Requirement, [*wanted, *CLIENT["project"]["dependencies"], *BENCH["project"]["dependencies"]]
    ):
        if requirement.name in {"torch", "torchvision", "serfer", "onnxruntime"}:
            continue
        pinned = pins[canonicalize_name(requirement.name)]
        bounds = {one.operator: Version(one.version) for one in requirement.specifier}
        assert set(bounds) == {">=", "<"}
        assert bounds[">="] <= pinned, requirement
        following = Version(f"{pinned.major + 1}")
        if requirement.name in tools and not pinned.major:
            following = Version(f"0.{pinned.minor + 1}")
        assert bounds["<"] == following, requirement


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


def test_a_demo_installs_what_it_needs_and_nothing_for_tests():
    commands = [line.partition("pip install ")[2] for line in recipe()]
    [extra] = [number for number, line in enumerate(commands) if line.endswith('--editable ".[demo]"')]
    assert "--constraint requirements.txt" in commands[extra]
    assert not [line for line in commands[: extra + 1] if " -r " in line]


def test_torch_alone_comes_from_the_index_that_make_is_given():
    assert not [line for line in recipe() if "--index-url" in line]
    [line] = [line for line in recipe("TORCH_INDEX=file:///wheels/cpu") if "--index-url" in line]
    assert line.endswith("torch==2.13.0 --index-url file:///wheels/cpu")
    assert recipe()[0].endswith("torch==2.13.0 ")  # before anything that asks for it


@pytest.mark.exact
def test_the_clients_distribution_has_the_modules_that_the_client_imports():
    names = "{name for name in sys.modules if name.partition('.')[0] == 'serfer'}"
    clients = "serfer.Client, serfer.AsyncClient"
    look = f"import serfer, sys; {clients}; print(*(sys.modules[name].__file__ for name in {names}))"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    included = CLIENT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    files = {(ROOT / "serfer" / "client" / source).resolve(): ROOT / target for source, target in included.items()}
    assert all(source == target for source, target in files.items())
    assert {*files} == {*map(Path, loaded), ROOT / "serfer" / "py.typed"}
    project = PROJECT["project"]
    assert {*CLIENT["project"]["dependencies"]} - {*project["dependencies"]} == {
        *project["optional-dependencies"]["client"]
    }


def built(project, out):
    shutil.rmtree(project / "build", ignore_errors=True)  # setuptools packs what an earlier commit has left there
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(project)]
    subprocess.run(build, check=True, cwd=out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bench_wheel(tmp_path_factory):
    return built(ROOT / "bench", tmp_path_factory.mktemp("bench-wheel"))


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory):
    return built(ROOT / "serfer" / "client", tmp_path_factory.mktemp("client-wheel"))


def files_of(package):
    """Return the files of a package in a checkout, those behind links too."""
    walked = os.walk(ROOT / package, followlinks=True)
    paths = (Path(folder, name) for folder, _, names in walked for name in names if not name.endswith(".pyc"))
    return {path.relative_to(ROOT).as_posix() for path in paths if path.name != "pyproject.toml"}


def contents(archive):
    return {name for name in zipfile.ZipFile(archive).namelist() if ".dist-info/" not in name}


def test_a_wheel_has_one_package_with_every_module_and_all_data(wheel):
    names = contents(wheel)
    assert names == files_of("serfer")
    assert {name.partition("/")[0] for name in names} == {"serfer"}
    assert {"serfer/storage/store.py", "serfer/sam/build/locks/worker.txt", "serfer/py.typed"} <= names


FOLDERS = ("bench", "drivers", "lambdas", "sam", "splitter", "storage")
OWN = f"""
import {", ".join(FOLDERS)}, serfer, sys
with serfer.open(sys.argv[1]) as pipeline:
    assert pipeline.classify([sys.argv[2]])[0].predictions
assert all(package.__file__.startswith(sys.path[0]) for package in ({", ".join(FOLDERS)}))
"""


def test_a_project_may_have_packages_of_the_names_of_our_folders(plan, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    run([sys.executable, "own.py", plan, IMAGE], tmp_path)


def test_the_benchmarks_are_a_distribution_of_their_own(bench_wheel):
    assert contents(bench_wheel) == files_of("serfer_bench")
    assert f"serfer[zoo,pictures,local,deploy,learn]=={serfer.__version__}" in BENCH["project"]["dependencies"]


def test_the_public_api_is_exported_and_help_shows_no_addresses():
    tree = {name for name, kind in vars(errors).items() if getattr(kind, "__module__", "") == errors.__name__}
    assert tree | {"split", "open", "Plan", "Preprocess", "Pipeline", "Client", "AsyncClient"} <= set(dir(serfer))
    assert all(getattr(serfer, name) is getattr(errors, name) for name in tree)
    for function in (serfer.split, serfer.open):
        assert " at 0x" not in str(inspect.signature(function))


def link(site, files):
    """Link distributions' files into a directory, packages and metadata as a whole: torch's files are 15,000."""
    sources = {Path(os.path.normpath(site / file)): Path(file.locate()) for file in files if file.suffix != ".pyc"}
    whole = {
        place.parent for place in sources if place.name in {"__init__.py", "RECORD"} and place.parent.parent == site
    }
    for place, source in sources.items():
        steps = len(place.relative_to(site).parts) - 1 if {*place.parents} & whole else 0
        target, origin = (place.parents[steps - 1], source.parents[steps - 1]) if steps else (place, source)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(origin.resolve())


def environment(home, *wheels, extra=""):
    """Return the programs of a new virtual environment with wheels and what they and an extra require, linked."""
    venv.create(home, symlinks=True)
    site = home / "lib" / "python3.11" / "site-packages"
    subprocess.run(
        [*PIP, "--python", home / "bin" / "python", "install", "--ignore-installed", "--no-deps", *wheels],
        check=True,
        cwd=home,
    )
    own = {canonicalize_name(found.name): found for found in importlib.metadata.distributions(path=[str(site)])}
    known, waiting = set(), [(found, name) for found in own.values() for name in {"", extra}]
    while waiting:
        owner, extra = waiting.pop()
        for wanted in map(Requirement, owner.requires or ()):
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
                continue
            needed = own.get(canonicalize_name(wanted.name)) or importlib.metadata.distribution(wanted.name)
            requested = {(canonicalize_name(wanted.name), name) for name in ("", *wanted.extras)} - known
            known |= requested
            waiting += [(needed, name) for _, name in requested]
    link(site, chain.from_iterable(importlib.metadata.files(name) for name in {name for name, _ in known} - {*own}))
    return home / "bin"


def run(command, home, codes=(0,), **variables):
    """Run a program of an environment where nothing else is; return its standard output."""
    known = {"PATH": "/usr/bin:/bin", "HOME": str(home), "SERFER_CACHE_DIR": str(home / "cache"), **variables}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=known, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def installed_in(programs):
    names = "import importlib.metadata as m; print(*(one.name for one in m.distributions()))"
    return {canonicalize_name(name) for name in run([programs / "python", "-c", names], programs.parent).split()}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plan")
    split_small(directory)
    return directory / "plan"


@contextmanager
def served(programs, command, home):
    known = {"PATH": "/usr/bin:/bin", "HOME": str(home), "SERFER_CACHE_DIR": str(home / "cache")}
    words = [str(word) for word in (programs / "serfer", *command, "--port", "0", "--json")]
    with subprocess.Popen(words, env=known, cwd=home, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
    assert process.returncode == 128 + signal.SIGTERM or process.returncode == 0


ASK = """
import sys
from serfer import Client
with Client(sys.argv[1]) as client:
    print(client.classify(sys.argv[2]).images[0].predictions[0].label)
assert not {"numpy", "onnxruntime", "aiohttp", "pydantic", "torch"} & {*sys.modules}
"""


@pytest.mark.deploy
def test_the_base_answers_and_the_client_brings_httpx_and_crc32c_alone(wheel, client_wheel, plan, tmp_path):
    base, client = environment(tmp_path / "base", wheel), environment(tmp_path / "client", client_wheel)
    heavy = {*["torch", "torchvision", "matplotlib", "scikit-learn", "scipy", "moto", "boto3", "httpx"]}
    assert not heavy & installed_in(base)
    only = {
        "anyio",
        "google-crc32c",
        "certifi",
        "h11",
        "httpcore",
        "httpx",
        "idna",
        "serfer-client",
        "typing-extensions",
    }
    assert installed_in(client) == only
    (answer,) = run([base / "serfer", "classify", IMAGE, "--plan", plan, "--json"], tmp_path).splitlines()
    label = json.loads(answer)["images"][0]["predictions"][0]["label"]
    assert run([base / "serfer", "explain", plan], tmp_path)
    with served(base, ["serve", "--plan", plan], tmp_path) as url:
        assert run([client / "python", "-c", ASK, url, IMAGE], tmp_path).strip() == label


TINY = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
"""


FIRST = '"predictions": [{"label": "Egyptian cat"'


def weekly(*case):
    return pytest.param(*case, marks=pytest.mark.weekly, id=case[0])


@pytest.mark.deploy
@pytest.mark.parametrize(
    ("extra", "absent", "commands", "said"),
    [
        weekly(
            *("split", "torchvision matplotlib scikit-learn efficientnet-lite-pytorch"),
            *(["split tiny.py:make --size 32x32 --out made"], ""),
        ),
        weekly("pictures", "torch torchvision", ["explain PLAN --picture plan.png"], ""),
        ("demo", "torchvision matplotlib scikit-learn moto", ["classify --demo IMAGE --json"], FIRST),
        (
            *("deploy", "torch matplotlib moto"),
            *(["deploy package PLAN --out build", "cost build --json", "deploy smoke --help"], "smoke"),
        ),
    ],
)
def test_an_extra_brings_what_its_commands_need_and_no_more(wheel, plan, tmp_path, extra, absent, commands, said):
    programs = environment(tmp_path / "home", wheel, extra=extra)
    assert not {*absent.split()} & installed_in(programs)
    (tmp_path / "tiny.py").write_text(TINY)
    cache = load_settings().cache_dir
    for kind in LAYERS if extra == "deploy" else ():
        wheels(lock_file(kind), "python3.13", "x86_64", cache)  # by our pip: the environment has none
    known = {"SERFER_CACHE_DIR": str(cache), "AWS_DEFAULT_REGION": "us-east-1"}
    for command in commands:
        words = command.replace("PLAN", str(plan)).replace("IMAGE", str(IMAGE)).split()
        printed = run([programs / "serfer", *words], tmp_path, **(known if extra == "deploy" else {}))
    assert said in printed


@pytest.mark.deploy
@pytest.mark.weekly
def test_local_runs_the_whole_system(wheel, client_wheel, plan, tmp_path):
    programs = environment(tmp_path / "local", wheel, extra="local")
    client = environment(tmp_path / "client", client_wheel)
    assert not {"torch", "matplotlib"} & installed_in(programs)
    with served(programs, ["serve", "--plan", plan, "--drivers", "1"], tmp_path) as url:
        assert run([client / "python", "-c", ASK, url, IMAGE], tmp_path)
    run([programs / "serfer", "classify", IMAGE, "--plan", plan, "--set", "engine=stepfunctions"], tmp_path)


@pytest.mark.deploy
@pytest.mark.weekly
def test_bench_measures(wheel, bench_wheel, tmp_path):
    programs = environment(tmp_path / "bench", wheel, bench_wheel)
    assert run(
        [programs / "serfer", "bench", "stores", "--store", "memory://", "--size", "10", "--rounds", "2"], tmp_path
    )
    assert run([programs / "serfer", "bench", "chaos", "--help"], tmp_path)


NEWEST = ("onnxruntime", "numpy", "fastapi")
"""What a wheel's own test takes again; torch and all else are those of this environment."""


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """A new virtual environment in which pip has installed the wheel, with the newest versions that it allows."""
    look = [*PIP, "--retries", "1", "--timeout", "10", "index", "versions", NEWEST[0]]
    if (answer := subprocess.run(look, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no package index can be reached: {answer.stderr.strip().splitlines()[-1]}")
    home = tmp_path_factory.mktemp("elsewhere")
    venv.create(home, with_pip=True, symlinks=True)
    ours, theirs = Path(sysconfig.get_path("purelib")), home / "lib" / "python3.11" / "site-packages"
    for entry in ours.iterdir():
        own = entry.name.startswith(("__editable__", "_serfer_bench"))
        again = own or re.split("[-.]", entry.name)[0] in {"serfer", "serfer_bench", *NEWEST}
        if not again and not (theirs / entry.name).exists():
            (theirs / entry.name).symlink_to(entry)
    pip = [home / "bin" / "python", "-I", "-m", "pip"]  # on whose path is no checkout, which would satisfy it
    install = [*pip, "install", "--quiet", "--disable-pip-version-check", f"{wheel}[all]"]
    subprocess.run(install, check=True, cwd=home)
    return home / "bin"


@pytest.mark.deploy
def test_a_wheel_that_plain_pip_installed_classifies_on_local_workers(elsewhere, tmp_path):
    def serfer(*arguments):
        return [json.loads(line) for line in run([elsewhere / "serfer", *arguments], tmp_path).splitlines()]

    (answer,) = serfer("classify", "--demo", IMAGE, "--json")
    assert answer["images"][0]["predictions"][0]["label"] == "Egyptian cat"
    doctor = run([elsewhere / "serfer", "doctor", "--json"], tmp_path, codes=(0, 4))
    checks = [json.loads(line) for line in doctor.splitlines()]
    assert {check["name"] for check in checks if not check["ok"]} <= {"space"}  # the disk is the machine's
    versions = {check["name"]: check["found"] for check in checks}
    newest = run([elsewhere / "pip", "index", "versions", "onnxruntime"], tmp_path, **os.environ)
    assert f"onnxruntime ({versions['onnxruntime']})" in newest
    installed = int(versions["function package"].split(" ")[0].replace(",", ""))
    split_small(tmp_path)  # writes small.onnx
    serfer("split", tmp_path / "small.onnx", "--out", tmp_path / "own", "--json")
    assert load_plan(tmp_path / "own").limit.dependencies >= installed


USER = """
import numpy as np
import serfer
from serfer import Client, Preprocess, SerferError, open, split
plan = serfer.split("net.onnx", np.zeros((1, 3, 8, 8), np.float32), preprocess="own.toml")
reveal_type(plan)
with serfer.open("plan") as pipeline:
    reveal_type(pipeline.last_report)
try:
    plan = serfer.split(7, grids=(2, 2), stages="auto")
except serfer.ModelError as error:
    reveal_type(error)
with Client("http://localhost:8000") as client:
    reveal_type(client.classify("image.png"))
pipeline = open("plan")
preprocess: Preprocess = plan.preprocess or Preprocess(256, "bicubic", "RGB", 1.0, (0.0,), (1.0,))
split("net.onnx", preprocess=preprocess)
raised: list[type[SerferError]] = [serfer.MissingExtraError, serfer.PlanError]
"""


@pytest.mark.deploy
@pytest.mark.parametrize("installed", [pytest.param("editable", marks=pytest.mark.weekly), "wheel"])
def test_a_users_own_file_passes_strict_type_checks(installed, request, tmp_path):
    python = sys.executable if installed == "editable" else request.getfixturevalue("elsewhere") / "python"
    (tmp_path / "user.py").write_text(USER)
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for kind in ("serfer.core.plan.model.Plan", "serfer.core.report.QueryReport", "serfer.core.errors.ModelError"):
        assert f'Revealed type is "{kind}' in done.stdout
    assert '"serfer.core.http_messages.ServedReport"' in done.stdout


@pytest.mark.deploy
def test_the_client_alone_passes_strict_type_checks(client_wheel, tmp_path):
    python = environment(tmp_path / "client", client_wheel) / "python"
    code = "from serfer import Client; reveal_type(Client('http://localhost').classify('image.png'))"
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "-c", code]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert '"serfer.core.http_messages.ServedReport"' in done.stdout


def test_ci_runs_the_documented_commands():
    documented = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    commands = [line.strip() for line in script.splitlines() if line.startswith("make ")]
    assert "make test" in commands
    for command in commands:
        assert command in documented
