"""Functions with layers, and functions for another interpreter than the service's own."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.service import LambdaService
from serfer.settings import load_settings
from tests.local.test_lambda_service import HERE, Local, probe
from tests.support.processes import wait_for_end

FACTS = shipped_aws().functions
OWN = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_313 = Path(sys.prefix) / "python3.13" / "bin" / "python3.13"


@pytest.fixture
def layers(tmp_path):
    """Two layers that both have a module named `both`; the second alone has `far`."""
    directories = tmp_path / "near", tmp_path / "far"
    for layer in directories:
        (layer / "python").mkdir(parents=True)
        (layer / "python" / "both.py").write_text("")
    (directories[1] / "python" / "far.py").write_text("")
    return directories


@pytest.fixture
def wrapped(tmp_path):
    """Our own interpreter behind a script, as one is that brings its own C library."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return script


class TestLayers:
    def test_imports_look_into_them_after_the_function_and_before_the_runtime(self, runtime, layers):
        with Local(runtime, probe("variables", layers=layers), probe("imports", layers=layers)) as local:
            path = local.invoke("variables")[0]["path"]
            assert local.invoke("imports", ["both", "far", "handler", "numpy"])[0] == {
                "both": True,
                "far": True,
                "handler": True,
                "numpy": False,
            }
        assert path[:3] == [str(HERE / "probe"), *(str(layer / "python") for layer in layers)]
        assert path.index(str(runtime)) > 2

    def test_they_count_as_the_package_does(self, runtime, layers):
        with (layers[1] / "weights").open("wb") as sparse:
            sparse.truncate(FACTS.package_limit)
        function = probe("echo", layers=layers)
        with pytest.raises(InputError, match=r"echo: its package .* with its layers has 262,"):
            LambdaService([function], facts=FACTS, runtime=runtime)

    def test_invocations_that_lambda_refuses(self, runtime, layers, tmp_path):
        for wrong, words in [
            ((tmp_path / "nowhere",), "echo: its directory .*nowhere does not exist"),
            (layers * 3, "echo: 6 layers, Lambda allows 5"),
        ]:
            with pytest.raises(InputError, match=words):
                LambdaService([probe("echo", layers=wrong)], facts=FACTS, runtime=runtime)


class TestInterpreters:
    def test_a_script_that_becomes_python_is_one(self, runtime, wrapped):
        functions = probe("variables", python=wrapped), probe("hoard", python=wrapped, memory_mb=128), probe("echo")
        with Local(runtime, *functions, runtimes={wrapped: runtime}) as local:
            assert local.invoke("variables")[0]["environ"]["AWS_EXECUTION_ENV"] == f"AWS_Lambda_{OWN}"
            assert local.client.get_function_configuration(FunctionName="variables")["Runtime"] == OWN
            assert local.error("hoard")["errorType"] == "Runtime.OutOfMemory"  # it is the worker that is watched

    @pytest.mark.killed
    def test_its_process_is_the_one_that_is_killed(self, runtime, wrapped):
        with Local(runtime, probe("echo", python=wrapped), runtimes={wrapped: runtime}) as local:
            worker = os.pidfd_open(local.invoke("echo")[0]["pid"])
        wait_for_end(worker)

    def test_unsuitable_interpreters_are_refused(self, runtime, tmp_path):
        silent, lost = Path("/bin/true"), tmp_path / "nowhere"
        for python, known, words in [
            (silent, {}, "echo: give the directory of a runtime for /bin/true"),
            (silent, {silent: runtime}, "/bin/true is not a Python interpreter: it says ''"),
            (lost, {lost: runtime}, "nowhere is not a Python interpreter that runs here: FileNotFoundError"),
        ]:
            with pytest.raises(InputError, match=words):
                LambdaService([probe("echo", python=python)], facts=FACTS, runtime=runtime, runtimes=known)


@pytest.mark.skipif(not PYTHON_313.exists(), reason="python3.13 is not set up: run `make setup` where apt is")
def test_a_function_runs_under_the_python_that_lambda_has(runtime):
    """Debian's python3.13 with its own C library, and AWS's runtime client for it."""
    from tests.python313.client import runtime_client  # noqa: PLC0415 - it fetches wheels

    clients = {PYTHON_313: runtime_client(load_settings().cache_dir)}
    functions = [
        FunctionConfig(name, HERE / "probe", f"handler.{name}", memory_mb=128, python=PYTHON_313)
        for name in ("variables", "fail", "hoard", "leave")
    ]
    with Local(runtime, *functions, runtimes=clients) as local:
        variables = local.invoke("variables")[0]
        assert variables["environ"]["AWS_EXECUTION_ENV"] == "AWS_Lambda_python3.13"
        assert any(place.endswith("python3.13/lib-dynload") for place in variables["path"])
        assert local.error("fail", "luck")["errorMessage"] == "no luck"
        assert local.error("hoard")["errorType"] == "Runtime.OutOfMemory"
        assert local.error("leave", {"status": 3})["errorType"] == "Runtime.ExitError"
