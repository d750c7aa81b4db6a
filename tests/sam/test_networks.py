"""Real networks in combinations that are offered: linted as SAM and as CloudFormation have them, and built.

A combination gives a template its shape, a network its names and counts: every pair of choices is seen on one network,
another has one combination; `make weekly` runs all. Neither a network nor
credentials are needed once a network is split. A BUILD directory is written once for each kind of drivers; its template
and state machine are then those of each combination, since nothing else in it differs.
"""

import functools
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from serfer.control.instance_profile import Profile
from serfer.control.scenario import InstanceType
from serfer.core.costs.aws import shipped_aws
from serfer.local.lambda_.function import check_function
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import check_artefacts, load_plan
from serfer.sam.build.package import MACHINE, package
from serfer.sam.deployment import load_deployment
from serfer.sam.options import DRIVERS, ENGINES, STORES, digest12, weights_id
from serfer.sam.samconfig import FILE, samconfig
from serfer.sam.template.functions import state_machine
from serfer.sam.template.template import dump, make_template
from serfer.sam.weights import fetched, pieces
from serfer.settings import load_settings
from serfer_bench.core.plans import tiled_plan
from tests.sam.built import SAM, Stack, run_sam, sam_lint
from tests.sam.offered import POOL, POOLED, findings, options, translated

VALIDATOR = Path(__file__).parents[1] / "asl" / "node_modules" / ".bin" / "asl-validator"
PAIRED = tuple(
    (DRIVERS[(row + column) % len(DRIVERS)], store, engine)
    for row, store in enumerate(STORES)
    for column, engine in enumerate(ENGINES)
    if (DRIVERS[(row + column) % len(DRIVERS)], store) != ("fleet", "valkey-public")
)
"""Combinations in which any two choices are seen together."""
BY_SAM = (
    *(("function", "s3", "push"), ("fleet", "s3express", "stepfunctions")),
    *(("fleet", "valkey", "poll"), ("function", "redis", "stepfunctions-express")),
)
"""Each driver, store and engine; SAM CLI lints with cfn-lint, too."""
BUILT = tuple((drivers, "s3", engine) for drivers in DRIVERS for engine in ("push", "stepfunctions"))
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not SAM.exists(), reason="make setup did not get SAM CLI"),
    pytest.mark.usefixtures("region"),
]


def on_each(cases):
    return pytest.mark.parametrize("chosen", cases, ids="-".join)


def on_some(cases, *numbers):
    """Parametrise with all cases, of which a commit runs those with these numbers."""
    weekly = pytest.mark.weekly
    return on_each([pytest.param(case, marks=() if number in numbers else weekly) for number, case in enumerate(cases)])


class _Network:
    model = ""

    @pytest.fixture(scope="class")
    @classmethod
    def directory(cls):
        return tiled_plan(cls.model, load_settings())

    @pytest.fixture(scope="class")
    @classmethod
    def plan(cls, directory):
        return load_plan(directory)

    @pytest.fixture(scope="class")
    @classmethod
    def packaged(cls, directory, tmp_path_factory):
        """Return the BUILD directory of a kind of drivers, written once; what is built there takes up to 3 GB."""
        root = tmp_path_factory.mktemp(cls.model)

        @functools.cache
        def packaged(drivers):
            chosen = options(drivers, engine="stepfunctions", store="s3")
            package(directory, root / drivers, chosen, load_settings(), progress=lambda _: None)
            return root / drivers

        yield packaged
        shutil.rmtree(root)

    @pytest.fixture
    def build(self, packaged, plan):
        """Write a combination's own files into the BUILD directory of its drivers, and return that."""

        def build(drivers, store, engine):
            chosen, place = options(drivers, store, engine), packaged(drivers)
            (place / "template.yaml").write_text(dump(make_template(chosen, [plan])), encoding="utf-8")
            if chosen.by_state_machine:
                text = json.dumps(state_machine(plan, chosen), indent=2)
                (place / "plans" / digest12(plan) / MACHINE).write_text(text, encoding="utf-8")
            return place

        return build

    def check_template(self, chosen, plan):
        """Lint it as SAM's translator makes it, of which cfn-lint knows most; SAM CLI lints its own form below."""
        assert findings(json.dumps(translated(make_template(options(*chosen), [plan])))) == []

    def build_and_check(self, place, plan):
        for command in ("validate", "build"):
            done = run_sam(command, cwd=place)
            assert done.returncode == 0, done.stdout + done.stderr
        functions = Stack(place / ".aws-sam" / "build").functions({}, None)
        uploads = sum(len(pieces(weights)) for weights in fetched([plan]))
        assert len(functions) == len(plan.functions) + uploads + (place.name == "function")
        for function in functions.values():
            check_function(function, shipped_aws().functions)  # its true size with its layers among others


def check_plan_on_instance(built, plan, place):
    """Put together what user-data-gpu.sh does, and look whether it is the whole network."""
    names = ["DriverPlans", *(weights_id(digest12(plan), *part) for part in plan.functions)]
    for name in names:
        shutil.copytree(built.directory / name, place, dirs_exist_ok=True)
    there = place / "plans" / digest12(plan)
    shutil.copytree(place / "python" / "serfer_plan", there, dirs_exist_ok=True)
    check_artefacts(load_plan(there), there)
    image = np.zeros((1, plan.input.channels, plan.input.height, plan.input.width), np.float32)
    assert unsplit(plan, there)(image).shape == (1, plan.output.elements)
    (wheel,) = (built.directory / "GpuRuntime" / "gpu").iterdir()
    assert wheel.name.startswith("onnxruntime_gpu-")


class TestAlexNet(_Network):
    model = "alexnet"

    @on_some(PAIRED, 5)
    def test_nothing_is_found_in_its_template(self, chosen, plan):
        self.check_template(chosen, plan)

    @on_some(BUILT, 0)
    def test_it_is_built_and_within_the_limits(self, chosen, build, plan):
        self.build_and_check(build(*chosen), plan)


class TestEfficientNetLite0(_Network):
    model = "efficientnet-lite0"

    @on_each(PAIRED)
    def test_nothing_is_found_in_its_template(self, chosen, plan):
        self.check_template(chosen, plan)

    @on_some(BUILT, 1, 2)
    def test_it_is_built_and_within_the_limits(self, chosen, build, plan):
        self.build_and_check(build(*chosen), plan)

    @pytest.mark.skipif(not shutil.which("node") or not VALIDATOR.exists(), reason="npm was not there for `make setup`")
    @pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.startswith("stepfunctions")])
    def test_its_state_machine_is_sound(self, engine, plan, tmp_path):
        """As it is written, and as a plain resource of CloudFormation, which cfn-lint looks into."""
        definition = state_machine(plan, options(engine=engine))
        (tmp_path / "machine.json").write_text(json.dumps(definition), encoding="utf-8")
        checked = subprocess.run(
            [VALIDATOR, "--json-path", tmp_path / "machine.json"], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        role = "arn:aws:iam::123456789012:role/x"
        plain = {"Type": "AWS::StepFunctions::StateMachine", "Properties": {"RoleArn": role, "Definition": definition}}
        assert findings(json.dumps({"Resources": {"Machine": plain}})) == []

    @pytest.fixture(scope="class")
    @classmethod
    def linted(cls, plan, tmp_path_factory):
        """Return what SAM CLI says of each template of BY_SAM, and of one that is wrong."""
        root = tmp_path_factory.mktemp("linted")
        sources = {chosen: make_template(options(*chosen), [plan]) for chosen in BY_SAM}
        sources["wrong",] = {"Resources": {"Wrong": {"Type": "AWS::Serverless::Wrong"}}}
        for chosen, source in sources.items():
            place = root / "-".join(chosen)
            place.mkdir()
            (place / FILE).write_bytes(samconfig(options()))
            (place / "template.yaml").write_text(dump(source), encoding="utf-8")
        results = sam_lint([root / "-".join(chosen) for chosen in sources], root)
        return dict(zip(sources, results, strict=True))

    @on_each(BY_SAM)
    def test_sam_finds_nothing_whatever_is_chosen(self, chosen, linted):
        code, output = linted[chosen]
        assert code == 0, output
        assert "is a valid SAM Template" in output
        assert linted["wrong",][0] == 1

    def test_sam_validates_and_builds_it_with_a_gpu_pool(self, directory, plan, tmp_path):
        kind = InstanceType(POOL.instance_type, 0.8, 0.0, 180.0, 60.0, 100.0, ((1, 5.0), (8, 30.0)))
        chosen, place = options(*POOLED, gpu=POOL), tmp_path / "fleet"
        package(directory, place, chosen, load_settings(), profile=Profile(kind, 200.0), progress=lambda _: None)
        self.build_and_check(place, plan)  # test_pools.py lints it
        built = Stack(place / ".aws-sam" / "build")
        check_plan_on_instance(built, plan, tmp_path / "instance")
        shutil.rmtree(tmp_path)  # it is large, and pytest keeps what three runs wrote

    def test_the_same_inputs_give_the_same_bytes_with_all_that_is_packed(self, packaged, directory, tmp_path):
        chosen = options("function", engine="stepfunctions", store="s3")
        again = package(directory, tmp_path / "build", chosen, load_settings(), progress=lambda _: None)
        assert again == load_deployment(packaged("function"))
