"""`serfer deploy package`: a directory that is whole, reproducible, careful with what it replaces, and keeps a plan."""

import hashlib
import json
import shutil
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.control.instance_profile import Profile
from serfer.control.scenario import InstanceType, parse_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.pricing import store_of
from serfer.core.errors import InputError, ModelError, PlanError, UsageError
from serfer.doctor.aws import Build
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer.sam import quotas, weights
from serfer.sam.build import package as package_module
from serfer.sam.build.package import package
from serfer.sam.build.tree import seal, tree_digest
from serfer.sam.deployment import load_deployment, load_template, plan_directory
from serfer.sam.options import GpuPool, Serves, digest12, function_id
from serfer.sam.samconfig import stack_of
from serfer.sam.stacks import find_stack
from serfer.settings import Settings
from tests.e2e.small import put_weights_in, split_small
from tests.sam.builds import digests, files
from tests.sam.conftest import OPTIONS

pytestmark = pytest.mark.usefixtures("light_layers")


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    root = tmp_path_factory.mktemp("plans")
    return [
        split_small(root / "one"),
        split_small(root / "two", grids=[(1, 2), (1, 1)]),
        split_small(root / "three", grids=[(1, 1)]),
    ]


def test_a_directory_holds_all_that_sam_needs(packed, plans, tmp_path):
    deployment = packed(plans[0])
    build = tmp_path / "build"
    plan, [digest] = load_plan(plans[0]), digests(plans[:1])
    assert load_deployment(build) == deployment
    assert deployment.plans == (digest,)
    assert set(deployment.bytes) == {f"{stage}-{number}" for stage, number in plan.functions}
    present = files(build)
    for stage, number in plan.functions:
        here = f"plans/{digest}/functions/{stage}-{number}"
        assert {f"{here}/plan.json", f"{here}/Makefile"} <= present
        weights = plan.stages[stage].functions[number].weights.path
        assert f"plans/{digest}/weights/{stage}-{number}/python/serfer_plan/{weights}" in present
        assert function_id(digest, stage, number) in load_template(build)["Resources"]
    assert {"template.yaml", "samconfig.toml", "sbom.cdx.json", f"driver/plans/{digest}/plan.json"} <= present
    assert f"driver/plans/{digest}/explanation.json" in present
    assert not [name for name in present if name.startswith("plans/") and name.endswith("explanation.json")]


def test_a_driver_that_runs_the_plan_gets_its_layer_and_leaves_health_checks_to_another(packed, plans, tmp_path):
    deployment = packed(plans[2])
    build, [digest] = tmp_path / "build", digests([plans[2]])
    assert deployment.driver_runs.keys() == {digest}
    assert load_deployment(build) == deployment
    assert {"layers/runner/Makefile", "health/health.py", "health/Makefile"} <= files(build)
    assert deployment.bytes.keys() == {"0-0"}
    own = [f"plans/{digest}/functions/", "layers/worker/"]
    assert not [name for name in files(build) if name.startswith(tuple(own))]
    driver = load_template(build)["Resources"]["DriverFunction"]["Properties"]
    assert driver["MemorySize"] == deployment.driver_runs[digest]
    packed(plans[0])  # the plan before is run by the driver still
    assert load_deployment(build).driver_runs.keys() == {digest}
    packed(plans[0], replace(OPTIONS, driver_runs="never"))  # or by a function, which it had not
    assert load_deployment(build).driver_runs == {}
    assert f"plans/{digest}/functions/0-0/plan.json" in files(build)
    assert function_id(digest, 0, 0) in load_template(build)["Resources"]
    packed(plans[0], keep_previous=False)
    assert load_deployment(build).driver_runs == {}
    assert not [name for name in files(build) if name.startswith(("layers/runner/", "health/"))]


def test_a_driver_and_a_plan_that_do_not_fit_into_one_package_are_two_functions(packed, plans, tmp_path, monkeypatch):
    limit = shipped_aws().functions.package_limit

    def large(target, *_):
        target.mkdir(parents=True)
        return replace(seal(target, "Layer"), bytes=limit)

    monkeypatch.setattr(package_module.layers, "runner_layer", large)
    assert packed(plans[2]).driver_runs == {}
    assert not [name for name in files(tmp_path / "build") if name.startswith(("layers/runner/", "health/"))]
    with pytest.raises(UsageError, match="bytes unzipped together"):
        packed(plans[2], replace(OPTIONS, driver_runs="always"))


@pytest.fixture(scope="module")
def fetching(tmp_path_factory):
    """Two plans of the same weights, which their functions fetch."""
    root = tmp_path_factory.mktemp("fetching")
    splits = [split_small(root / "one", gang="never"), split_small(root / "two", gang="never", grids=[(1, 2), (1, 1)])]
    return [put_weights_in(directory, "fetched") for directory in splits]


def test_fetched_weights_are_packaged_in_pieces_and_in_no_function(packed, fetching, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES", 1000)
    deployment = packed(fetching[0])
    build, plan, [digest] = tmp_path / "build", load_plan(fetching[0]), digests(fetching[:1])
    present = files(build)
    assert not [name for name in present if name.startswith(f"plans/{digest}") and name.endswith(".bin")]
    assert {f"plans/{digest}/weights/0-0/python/serfer_plan/{plan.stages[0].functions[0].graphs[0].path}"} <= present
    template = load_template(build)["Resources"]
    for artefact in weights.fetched([plan]):
        pieces = weights.pieces(artefact)
        assert len(pieces) == max(1, -(-artefact.bytes // 1000))
        parts = [(build / "weights" / piece.name / "piece.bin").read_bytes() for piece in pieces]
        assert b"".join(parts) == (fetching[0] / artefact.path).read_bytes()
        for piece in pieces:
            assert f"build-{piece.function_id}:" in (build / "weights" / piece.name / "Makefile").read_text()
            assert template[piece.function_id]["Properties"]["CodeUri"] == f"weights/{piece.name}"
        assert deployment.weights[artefact.sha256] == artefact.bytes
    assert load_deployment(build) == deployment


def test_plans_of_the_same_weights_share_their_pieces(packed, fetching, tmp_path):
    packed(fetching[0])
    before = {name for name in files(tmp_path / "build") if name.startswith("weights/")}
    (tmp_path / "build" / ".aws-sam").mkdir()
    both = packed(fetching[1])
    plans = [load_plan(directory) for directory in fetching]
    assert both.weights.keys() == {each.sha256 for each in weights.fetched(plans)}
    after = {name for name in files(tmp_path / "build") if name.startswith("weights/")}
    assert before <= after
    custom = [each for each in load_template(tmp_path / "build")["Resources"].values() if "Custom::" in each["Type"]]
    assert len(custom) == len(both.weights)
    assert len({each["Properties"]["Key"] for each in custom}) == len(custom)
    [first, *_] = weights.pieces(weights.fetched(plans[1:])[0])
    shutil.rmtree(tmp_path / "build" / "weights" / first.name)
    with pytest.raises(InputError, match="has lost its plan"):
        packed(fetching[0])


def test_the_same_inputs_give_the_same_bytes(packed, plans, tmp_path):
    first = packed(plans[0])
    (tmp_path / "build").rename(tmp_path / "before")
    again = packed(plans[0])
    assert first == again
    assert tree_digest(tmp_path / "before") == tree_digest(tmp_path / "build")
    assert packed(plans[1], keep_previous=False).digest != first.digest


def test_the_previous_plan_is_kept_until_the_next_package(packed, plans, tmp_path):
    one, two, three = digests(plans)
    assert packed(plans[0]).plans == (one,)
    assert packed(plans[1]).plans == (two, one)
    assert packed(plans[1]).plans == (two, one)  # the same plan again: with other code, say
    resources = load_template(tmp_path / "build")["Resources"]
    assert {function_id(two, 0, 0), function_id(one, 0, 0)} <= set(resources)
    assert packed(plans[2]).plans == (three, two)
    assert not any(one in name for name in files(tmp_path / "build"))
    assert packed(plans[0], keep_previous=False).plans == (one,)


def test_a_deployment_keeps_its_store_and_one_of_another_name_has_no_previous_plan(packed, plans):
    packed(plans[0])
    with pytest.raises(UsageError, match=r"--store valkey: .* was packaged for s3"):
        packed(plans[1], replace(OPTIONS, store="valkey"))
    other = packed(plans[1], replace(OPTIONS, store="valkey", name="other"))
    assert other.plans == tuple(digests(plans[1:2]))


def test_the_plan_before_gets_a_state_machine_where_the_new_one_has_one(packed, plans, tmp_path):
    packed(plans[0])
    packed(plans[1], replace(OPTIONS, engine="stepfunctions"))
    for digest in digests(plans[:2]):
        machine = json.loads((tmp_path / "build" / "plans" / digest / "statemachine.asl.json").read_text())
        assert "stage-0" in machine["States"]
    packed(plans[1])
    assert not any(name.endswith("asl.json") for name in files(tmp_path / "build"))


def test_sam_build_output_is_replaced_and_foreign_files_are_not(packed, plans, tmp_path):
    packed(plans[0])
    build = tmp_path / "build"
    (build / ".aws-sam").mkdir()
    (build / ".aws-sam" / "build.toml").touch()
    packed(plans[1])
    (build / "notes.txt").write_text("mine")
    before = tree_digest(build)
    with pytest.raises(InputError, match=r"holds notes.txt"):
        packed(plans[2])
    assert tree_digest(build) == before
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "x").touch()
    shutil.rmtree(build)
    foreign.rename(build)
    with pytest.raises(InputError, match="not written by serfer deploy package"):
        packed(plans[0])


@pytest.mark.hostile
def test_a_function_that_is_too_large_is_refused_and_nothing_is_left(plans, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(quotas, "_check_functions", lambda *_: None)  # the layers are larger than the splitter thought
    facts = tmp_path / "aws.toml"
    facts.write_text("[lambda]\npackage_limit = 1000\n")
    settings = Settings(cache_dir=cache, aws_file=facts)
    with pytest.raises(ModelError, match=r"function 0-0 takes .* more than the 1,000 that AWS allows:"):
        package(plans[0], tmp_path / "build", OPTIONS, settings, progress=lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aws.toml"]


def test_choices_that_cannot_be_are_refused_before_anything_is_built(packed, plans, tmp_path):
    for wrong in ({"name": "a" * 31}, {"store": "s3express"}, {"region": "us-east-9"}):
        with pytest.raises(UsageError, match=r"^(--)?[a-z]"):
            packed(plans[0], replace(OPTIONS, **wrong))
    assert not (tmp_path / "build").exists()


def test_a_plan_directory_cannot_be_replaced_by_its_own_package(plans, cache):
    before = hashlib.sha256((plans[0] / "plan.json").read_bytes()).digest()
    with pytest.raises(InputError):
        package(plans[0], plans[0], OPTIONS, Settings(cache_dir=cache), progress=lambda _: None)
    with pytest.raises(InputError):
        package(plans[0], plans[0].parent, OPTIONS, Settings(cache_dir=cache), progress=lambda _: None)
    with pytest.raises(InputError, match="lies in the plan directory"):
        package(plans[0], plans[0] / "build", OPTIONS, Settings(cache_dir=cache), progress=lambda _: None)
    assert hashlib.sha256((plans[0] / "plan.json").read_bytes()).digest() == before


def test_drivers_are_told_of_applications_and_of_the_plans_of_both_generations(packed, plans, tmp_path):
    serving = replace(OPTIONS, applications=Serves("s3://models/registry", ("faces", "pets")))
    packed(plans[0], serving)
    packed(plans[2], serving)
    assert load_deployment(tmp_path / "build").options == serving
    resources = load_template(tmp_path / "build")["Resources"]
    told = resources["DriverFunction"]["Properties"]["Environment"]["Variables"]
    assert told["SERFER_REGISTRY"] == "s3://models/registry"
    assert told["SERFER_APPLICATIONS"] == "faces,pets"
    assert told["SERFER_APPLICATION_PLANS"].split(":") == [f"plans/{each}" for each in digests([plans[2], plans[0]])]
    assert told["SERFER_WORKERS"] == "aws"  # one function would be the driver's own: it invokes several variants'
    for each in digests(plans[::2]):
        assert (tmp_path / "build" / "driver" / "plans" / each / "plan.json").is_file()


def test_plans_of_other_variants_are_packaged_and_stay_with_the_plan_that_they_came_with(packed, plans, tmp_path):
    one, two, three = digests(plans)
    serving = replace(OPTIONS, applications=Serves("s3://models/registry", ("faces",)))
    assert packed(plans[0], serving, beside=[plans[1]]).beside == {one: (two,)}
    deployment = packed(plans[2], serving, beside=[plans[0]])
    assert deployment.beside == {three: (one,), one: (two,)}
    assert load_deployment(tmp_path / "build") == deployment
    for each in (one, two, three):
        assert (tmp_path / "build" / "driver" / "plans" / each / "plan.json").is_file()
        assert (tmp_path / "build" / "plans" / each / "functions" / "0-0").is_dir()
    template = load_template(tmp_path / "build")
    assert template["Outputs"]["Plans"]["Value"].split(",") == [three, one, two]
    assert template["Outputs"]["Generations"]["Value"].split(",") == [three, one]


def test_a_stack_says_which_variants_came_with_which_plan():
    outputs = {"Plans": "a,b,c,d", "Generations": "a,b", "Variants": "a:c:d,b:d", "Serving": "a"}
    described = {"StackId": "id", "StackStatus": "UPDATE_COMPLETE"}
    described["Outputs"] = [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()]
    stack = find_stack(SimpleNamespace(describe_stacks=lambda **_: {"Stacks": [described]}), "shop")
    assert (stack.plans, stack.cold, stack.beside) == (("a", "b"), {}, {"a": ("c", "d"), "b": ("d",)})


def test_variants_that_drivers_would_not_use_are_refused(packed, plans, tmp_path):
    serving = replace(OPTIONS, applications=Serves("s3://models/registry", ("faces",)))
    with pytest.raises(UsageError, match="--app NAME"):
        packed(plans[0], OPTIONS, beside=[plans[1]])
    for beside in ([plans[0]], [plans[1], plans[1]]):
        with pytest.raises(UsageError, match="given twice"):
            packed(plans[0], serving, beside=beside)
    with pytest.raises(UsageError, match="at most 8"):
        packed(plans[0], serving, beside=[plans[1]] * 9)
    assert not (tmp_path / "build").exists()


POOLED = replace(OPTIONS, drivers="fleet", gpu=GpuPool("g6.xlarge", 3), architecture="x86_64")
PROFILE = Profile(InstanceType("g6.xlarge", 0.8, 0.0, 180.0, 60.0, 100.0, ((1, 5.0), (8, 30.0))), 200.0)


def scenario(build, digest):
    return parse_scenario(tomllib.loads((build / "driver" / "plans" / digest / "scenario.toml").read_text()))


def test_a_pool_brings_its_scenario_the_whole_networks_graph_and_its_layer(packed, plans, tmp_path):
    packed(plans[0], POOLED, profile=PROFILE)
    build, (digest,) = tmp_path / "build", digests(plans[:1])
    assert scenario(build, digest).instance == PROFILE.instance
    graph = build / "driver" / "plans" / digest / "unsplit.onnx"
    assert graph.read_bytes() == (plans[0] / "unsplit.onnx").read_bytes()
    assert (build / "layers" / "gpu" / "Makefile").is_file()
    assert "build-DriverPlans:" in (build / "driver" / "Makefile").read_text()
    resources = load_template(build)["Resources"]
    assert f"GpuGroup{digest}" in resources
    assert load_deployment(build).options == POOLED


def test_the_pool_of_the_plan_before_stays_as_it_was_packaged(packed, plans, tmp_path):
    packed(plans[0], POOLED, profile=PROFILE)
    faster = replace(PROFILE, instance=replace(PROFILE.instance, qps=200.0))
    packed(plans[1], POOLED, profile=faster)
    build, (old, new) = tmp_path / "build", digests(plans[:2])
    assert (scenario(build, old).instance.qps, scenario(build, new).instance.qps) == (100.0, 200.0)
    assert {f"GpuGroup{old}", f"GpuGroup{new}"} <= load_template(build)["Resources"].keys()


def test_spot_instances_are_those_of_plans_whose_scenario_has_their_price(packed, plans, tmp_path):
    packed(plans[0], POOLED, profile=PROFILE)
    spot = replace(POOLED, gpu=GpuPool("g6.xlarge", 3, spot=True))
    packed(plans[1], spot, profile=replace(PROFILE, instance=replace(PROFILE.instance, spot_usd_per_hour=0.3)))
    build, (old, new) = tmp_path / "build", digests(plans[:2])
    resources = load_template(build)["Resources"]
    assert {f"GpuGroup{old}", f"GpuGroup{new}", f"GpuGroup{new}Spot"} <= resources.keys()
    assert f"GpuGroup{old}Spot" not in resources
    assert load_deployment(build).options == spot


def test_a_plan_before_that_had_no_pool_gets_none(packed, plans, tmp_path):
    packed(plans[0], replace(POOLED, gpu=None))
    packed(plans[1], POOLED, profile=PROFILE)
    old, new = digests(plans[:2])
    resources = load_template(tmp_path / "build")["Resources"]
    assert f"GpuGroup{new}" in resources
    assert f"GpuGroup{old}" not in resources


def test_a_pool_without_a_profile_is_refused(packed, plans, tmp_path):
    with pytest.raises(UsageError, match=r"gpu_profile is missing: run serfer study tune --name g6.xlarge"):
        packed(plans[0], POOLED)
    assert not (tmp_path / "build").exists()


def test_the_command_packages_a_pool(plans, tmp_path):
    profile = tmp_path / "g6.toml"
    profile.write_text(
        '[[instance]]\nname = "g6.xlarge"\n# usd_per_hour is not known\nspot_usd_per_hour = 0\nboot_s = 180\n'
        "min_billing_s = 60\nqps = 100\nbatches = [[1, 5], [8, 30]]\n"
    )
    given = ["--gpu-instance-type", "g6.xlarge", "--set", "gpu_max=3", "--set", "gpu_warm_pool=1"]
    given += ["--set", f"gpu_profile={profile}", "--set", "gpu_slo_ms=200"]
    build = tmp_path / "build"
    words = ["deploy", "package", str(plans[0]), "--out", str(build), "--region", "us-east-1", "--json"]
    done = CliRunner().invoke(app, [*words, "--drivers", "fleet", *given])
    assert done.exit_code == 0, done.output
    assert load_deployment(build).options.gpu == GpuPool("g6.xlarge", 3, 1)
    (digest,) = digests(plans[:1])
    assert scenario(build, digest).instance.usd_per_hour == shipped_aws().instances["g6.xlarge"]
    for wrong in (
        given,
        ["--set", "gpu_max=3"],
        ["--set", "gpu_spot=true"],
        [*given, "--set", "gpu_spot=true"],
        given[:-2],
        given[:-4] + given[-2:],
        given[-4:],
    ):
        refused = CliRunner().invoke(app, [*words, *(["--drivers", "fleet"] if wrong != given else []), *wrong])
        assert refused.exception.exit_code == 2, wrong
        assert "gpu" in str(refused.exception)


def test_the_command_deploys_the_store_that_the_plan_was_made_for_and_says_for_which_account(
    plans, tmp_path, cache, monkeypatch
):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(cache))

    def packaged(build, *options):
        words = ["deploy", "package", str(plans[0]), "--out", str(tmp_path / build), "--region", "us-east-1", *options]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return load_deployment(tmp_path / build).options.store, " ".join(done.stdout.split())

    own = store_of(load_plan(plans[0]), shipped_aws())
    store, said = packaged("build")
    assert (store, f"store {own}" in said) == (own, True)
    assert "checked for a new AWS account of 3,008 MB a function and 10 environments at once" in said
    burst = Build.load(tmp_path / "build").template["Parameters"]["ThrottleBurst"]
    assert burst["Default"] <= 10
    assert f"{burst['Default']} are what an account of 10 environments answers" in burst["Description"]
    assert f"{burst['Default']} at once, 100 a second, 100,000 a month a key" in said
    assert packaged("other", "--store", "valkey", "--set", "account=default")[0] == "valkey"
    assert Build.load(tmp_path / "other").template["Parameters"]["ThrottleBurst"]["Default"] > 10
    monkeypatch.setenv("SERFER_ACCOUNT", "default")
    store, said = packaged("other")
    assert (store, "checked for an AWS account of 10,240 MB" in said) == ("valkey", True)


def test_a_deployment_of_another_version_is_replaced_only_when_its_plan_may_go(packed, plans, tmp_path):
    packed(plans[0])
    record = tmp_path / "build" / "deployment.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "format": 0}))
    with pytest.raises(InputError, match=r"cannot be updated: .* package with --no-previous"):
        packed(plans[1])
    assert packed(plans[1], keep_previous=False).plans == tuple(digests(plans[1:2]))


def test_a_plan_before_that_was_altered_or_lost_is_refused(packed, plans, tmp_path):
    packed(plans[0])
    build, (digest,) = tmp_path / "build", digests(plans[:1])
    (build / "plans" / digest).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"has lost its plan {digest}: package with --no-previous"):
        packed(plans[1])
    (build / "driver" / "plans" / digest / "plan.json").write_bytes((plans[2] / "plan.json").read_bytes())
    with pytest.raises(PlanError, match="another plan"):
        packed(plans[1])


def test_samconfig_follows_the_options_until_edited(packed, plans, tmp_path):
    packed(plans[0])
    packed(plans[0], replace(OPTIONS, name="other", region="eu-west-1"))
    file = tmp_path / "build" / "samconfig.toml"
    assert 'stack_name = "other-prod"' in file.read_text()
    file.write_text(file.read_text().replace("other-dev", "mine"))
    packed(plans[0])
    settings = stack_of(file.parent, "dev")
    assert (settings.stack, settings.region) == ("mine", "eu-west-1")


@pytest.mark.parametrize("place", [".", COLD_DIRECTORY])
def test_a_plan_directory_that_was_altered_is_refused(packed, pair, tmp_path, place):
    copy = shutil.copytree(pair, tmp_path / "copy")
    weights = next((copy / place).glob("stage-0/weights-*.bin"))
    weights.write_bytes(b"\0" + weights.read_bytes()[1:])
    with pytest.raises(PlanError, match="altered"):
        packed(copy)
    assert not (tmp_path / "build").exists()


class TestColdPlan:
    def test_its_functions_are_packaged_beside_the_plans(self, packed, pair, tmp_path):
        deployment = packed(pair)
        build, [main, cold] = tmp_path / "build", digests([pair, pair / COLD_DIRECTORY])
        assert load_deployment(build) == deployment
        assert (deployment.plans, deployment.cold) == ((main,), {main: cold})
        parts = load_plan(pair / COLD_DIRECTORY).functions
        assert deployment.bytes.keys() == {
            *(f"{stage}-{number}" for stage, number in load_plan(pair).functions),
            *(f"cold-{stage}-{number}" for stage, number in parts),
        }
        template, present = load_template(build), files(build)
        assert {function_id(cold, *part) for part in parts} <= template["Resources"].keys()
        assert {f"plans/{cold}/functions/{stage}-{number}/plan.json" for stage, number in parts} <= present
        assert template["Outputs"]["Plans"]["Value"] == f"{main},{cold}"
        assert template["Outputs"]["Generations"]["Value"] == f"{main}:{cold}"

    def test_drivers_find_it_in_the_directory_of_the_plan(self, packed, pair, tmp_path):
        packed(pair)
        plan = load_plan(pair)
        place = plan_directory(tmp_path / "build", digest12(plan))
        assert load_cold_plan(place, plan) == load_plan(pair / COLD_DIRECTORY)
        assert f"plans/{digest12(plan)}/cold/plan.json" in (tmp_path / "build" / "driver" / "SHA256SUMS").read_text()

    def test_both_plans_of_the_generation_before_stay(self, packed, pair, plans, tmp_path):
        packed(pair)
        deployment = packed(plans[1])
        [two, main, cold] = digests([plans[1], pair, pair / COLD_DIRECTORY])
        assert (deployment.plans, deployment.cold) == ((two, main), {main: cold})
        assert load_template(tmp_path / "build")["Outputs"]["Generations"]["Value"] == f"{two},{main}:{cold}"
        assert f"driver/plans/{main}/cold/plan.json" in files(tmp_path / "build")
        assert packed(plans[2]).cold == {}
        assert not any(cold in name for name in files(tmp_path / "build"))

    def test_the_plan_that_was_served_may_become_the_cold_plan(self, packed, pair, tmp_path):
        packed(pair / COLD_DIRECTORY)
        deployment = packed(pair)
        main, cold = digests([pair, pair / COLD_DIRECTORY])
        assert (deployment.plans, deployment.cold) == ((main, cold), {main: cold})
        outputs = load_template(tmp_path / "build")["Outputs"]
        assert (outputs["Plans"]["Value"], outputs["Generations"]["Value"]) == (
            f"{main},{cold}",
            f"{main}:{cold},{cold}",
        )

    def test_a_generation_whose_cold_plan_is_gone_is_refused(self, packed, pair, plans, tmp_path):
        packed(pair)
        [cold] = digests([pair / COLD_DIRECTORY])
        shutil.rmtree(tmp_path / "build" / "plans" / cold)
        with pytest.raises(InputError, match=f"has lost its plan {cold}"):
            packed(plans[1])

    @pytest.mark.parametrize("engine", ["poll", "stepfunctions", "stepfunctions-express"])
    def test_an_engine_that_runs_one_plan_leaves_it_out(self, packed, pair, tmp_path, engine):
        assert packed(pair, replace(OPTIONS, engine=engine)).cold == {}
        assert not any(digests([pair / COLD_DIRECTORY])[0] in name for name in files(tmp_path / "build"))

    def test_the_command_lists_its_functions_or_says_that_it_is_left_out(self, pair, tmp_path, cache, monkeypatch):
        monkeypatch.setenv("SERFER_CACHE_DIR", str(cache))

        def said(*options):
            words = ["deploy", "package", str(pair), "--out", str(tmp_path / "build"), *options]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output
            return " ".join(done.output.split())

        assert "is left out: --engine poll" in said("--engine", "poll")
        with_both = said()
        assert "cold plan, stage-0-0" in with_both
        assert f"with the cold plan {digests([pair / COLD_DIRECTORY])[0]}" in with_both
