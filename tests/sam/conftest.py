import platform
import shutil
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

import serfer
from serfer.packaging.compiling import interpreter
from serfer.plan_directory import COLD_DIRECTORY
from serfer.sam.build import package
from serfer.sam.build.layers import driver_layer, worker_layer
from serfer.sam.build.tree import seal
from serfer.sam.build.wheels import MACHINES
from serfer.sam.options import Options
from serfer.settings import Settings, load_settings
from tests.e2e.small import split_small
from tests.python313.client import runtime_client
from tests.sam.ministack import Ministack, python_of_ministack
from tests.support.served import png

GRIDS = ([(1, 2), (1, 1)], [(2, 1), (1, 1)])
OPTIONS = Options("test", architecture={machine: name for name, machine in MACHINES.items()}[platform.machine()])


@pytest.fixture(scope="session")
def cache() -> Path:
    """The user's own cache: the first test needs the package index, the others do not."""
    return load_settings().cache_dir


@pytest.fixture(scope="session")
def python313():
    """Return the path of a Python as Lambda has it."""
    program = interpreter("python3.13")
    if program is None:
        pytest.skip("there is no python3.13: make setup brings it where apt is")
    return program


@pytest.fixture(scope="session")
def runtime313(cache):
    """Return the directory of Lambda's runtime client for it."""
    return runtime_client(cache)


@pytest.fixture(scope="session")
def worker(cache, tmp_path_factory):
    """The worker layer for this machine's architecture: its directory, and what was said of it."""
    target = tmp_path_factory.mktemp("worker") / "layer"
    yield target, worker_layer(target, OPTIONS, cache)
    shutil.rmtree(target)  # it is large, and pytest keeps what three runs wrote


@pytest.fixture(scope="session")
def driver(cache, tmp_path_factory):
    """The driver layer, likewise."""
    target = tmp_path_factory.mktemp("driver") / "layer"
    yield target, driver_layer(target, OPTIONS, cache)
    shutil.rmtree(target)  # it is large, and pytest keeps what three runs wrote


@pytest.fixture
def light_layers(monkeypatch):
    """Let packages have code that is the same for all, whose thousands of files test_layers and test_built look at."""

    def layer(target, *_):
        (target / "python" / "serfer").mkdir(parents=True)
        (target / "python" / "serfer" / "code.py").write_text("", encoding="utf-8")
        return seal(target, "Layer")

    for kind in ("worker", "driver", "gpu", "runner"):
        monkeypatch.setattr(package.layers, f"{kind}_layer", layer)
    monkeypatch.setattr(package, "dump_sbom", lambda *_: "{}")


@pytest.fixture
def packed(tmp_path, cache, light_layers):  # noqa: ARG001 - a fixture
    def packed(plan, options=OPTIONS, name="build", **more):
        return package.package(
            plan, tmp_path / name, options, Settings(cache_dir=cache), progress=lambda _: None, **more
        )

    return packed


@pytest.fixture
def region(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def aws(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    with mock_aws():
        yield boto3.session.Session()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A plan of one function, with one of several as its cold plan."""
    root = tmp_path_factory.mktemp("pair")
    whole = split_small(root / "whole", grids=[(1, 1)])
    shutil.copytree(split_small(root / "parts"), whole / COLD_DIRECTORY)
    return whole


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    python = python_of_ministack()
    directory = tmp_path_factory.mktemp("account")
    with Ministack(directory, python) as running:
        yield running
    shutil.rmtree(directory)  # every environment of a function unpacked its layers there


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    root = tmp_path_factory.mktemp("plans")
    return [split_small(root / str(number), grids=grids) for number, grids in enumerate(GRIDS)]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "noise.png"
    path.write_bytes(png())
    return path


@pytest.fixture(scope="module")
def expected(plans, image):
    """The unsplit network's answer: label and score, best first."""
    with serfer.open(plans[0], workers="inprocess") as pipeline:
        (answer,) = pipeline.classify([image])
    return [(each.label, each.score) for each in answer.predictions]
