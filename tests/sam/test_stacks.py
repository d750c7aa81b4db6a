"""Two generations and the way back are those of the stack that is deployed, not of the directory at hand."""

import io
import json
import zipfile
from dataclasses import replace

import boto3
import pytest

from serfer.core.errors import InputError, PlanError, UsageError
from serfer.plan_directory import COLD_DIRECTORY, load_plan
from serfer.sam import stacks
from serfer.sam.build import fetch
from serfer.sam.build import package as package_module
from serfer.sam.build.tree import tree_digest
from serfer.sam.samconfig import FILE, samconfig
from serfer.sam.weights import fetched
from tests.e2e.small import put_weights_in, split_small
from tests.sam.builds import build as build_directory
from tests.sam.builds import digests, options
from tests.sam.deployed import called
from tests.sam.ministack_server import PYTHON, MinistackServer, deploy

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make setup did not get ministack")


@pytest.fixture(scope="module")
def server():
    with MinistackServer() as server:
        yield server


@pytest.fixture
def session(server, monkeypatch):
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr(stacks, "_WAIT_S", 0.05)
    opened = boto3.session.Session()
    yield opened
    formation = opened.client("cloudformation")
    for one in formation.describe_stacks()["Stacks"]:
        formation.delete_stack(StackName=one["StackName"])
        waiter = formation.get_waiter("stack_delete_complete")
        waiter.wait(StackName=one["StackId"], WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})


def zipped(directory):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            if path.is_file() and name not in {"Makefile", "SHA256SUMS"}:
                archive.write(path, name)
    return made.getvalue()


def upload(session, build, digest, stack):
    """Make the functions of a BUILD directory's plan, with their layers."""
    client, root = session.client("lambda"), build / "plans" / digest
    for place in sorted((root / "functions").iterdir()):
        name = f"{stack}-{digest}-{place.name}"
        content = {"ZipFile": zipped(root / "weights" / place.name)}
        layer = client.publish_layer_version(LayerName=name, Content=content)
        client.create_function(
            FunctionName=name,
            Role="arn:aws:iam::000000000000:role/any",
            Runtime="python3.13",
            Handler="serfer.lambdas.bootstrap.handler",
            Code={"ZipFile": zipped(place)},
            Layers=[layer["LayerVersionArn"]],
        )


@pytest.fixture
def serve(session, packed, tmp_path):
    """Deploy a plan as test-dev from a directory, `gone`, that a new one knows nothing of; return its digests."""

    def serve(directory, *more, **outputs):
        packed(directory, name="gone")
        served = digests([directory, *more])
        for digest in served:
            upload(session, tmp_path / "gone", digest, "test-dev")
        deploy(session, "test-dev", served, **outputs)
        return served

    yield serve
    client = session.client("lambda")
    for one in client.list_functions()["Functions"]:
        client.delete_function(FunctionName=one["FunctionName"])


@pytest.fixture
def deployed(serve, plans):
    """The digest of the first plan, which test-dev serves."""
    [digest] = serve(plans[0])
    return digest


def check_same(one, other, digest):
    """Look whether two BUILD directories have the same functions of a plan."""
    for part in ("weights", "functions"):
        trees = {tree_digest(build / "plans" / digest / part) for build in (one, other)}
        assert len(trees) == 1, part


def check_drivers(fetched, kept, digest):
    """Look whether drivers get the same plan, but for the explanations, as it was fetched from a stack's functions."""
    places = [build / "driver" / "plans" / digest for build in (fetched, kept)]
    one, other = ({path.relative_to(place): path.read_bytes() for path in place.rglob("*.json")} for place in places)
    explanations = {path for path in other if path.name == "explanation.json"}
    assert explanations
    assert one == {path: data for path, data in other.items() if path not in explanations}


def test_a_new_directory_keeps_the_plan_that_a_stack_serves(deployed, packed, plans, tmp_path):
    assert packed(plans[1], previous_of="test-dev").plans == tuple(digests(plans[::-1]))
    assert called("check", str(tmp_path / "build"), "dev") == 0
    packed(plans[0], name="local")
    packed(plans[1], name="local")  # the same from a directory that had the plan before
    check_same(tmp_path / "build", tmp_path / "local", deployed)
    check_drivers(tmp_path / "build", tmp_path / "local", deployed)
    again = packed(plans[0], name="third", previous_of="test-dev")
    assert again.plans == (deployed,)  # the stack has no other


def test_a_gang_is_fetched_back_from_its_one_function(serve, packed, plans, tmp_path):
    [digest] = serve(split_small(tmp_path / "gang", gang="always"))
    assert [place.name for place in (tmp_path / "gone" / "plans" / digest / "functions").iterdir()] == ["0-0"]
    assert packed(plans[1], previous_of="test-dev").plans[1] == digest
    check_same(tmp_path / "gone", tmp_path / "build", digest)


def test_a_plan_that_the_driver_runs_is_fetched_back_from_the_driver(session, packed, plans, tmp_path):
    whole = split_small(tmp_path / "whole", grids=[(1, 1)])
    packed(whole, name="gone")
    [digest], client = digests([whole]), session.client("lambda")
    other = zipped(tmp_path / "gone" / "health")
    for number in range(2):  # the newest counts
        content = {"ZipFile": zipped(tmp_path / "gone" / "plans" / digest / "weights" / "0-0") if number else other}
        client.publish_layer_version(LayerName=f"test-dev-{digest}-0-0", Content=content)
    made = {"Role": "arn:aws:iam::000000000000:role/any", "Runtime": "python3.13", "Handler": "a.b"}
    package = zipped(tmp_path / "gone" / "driver")
    client.create_function(FunctionName="test-dev-driver", Code={"ZipFile": package}, **made)
    deploy(session, "test-dev", [digest], driver_runs=digest)
    assert packed(plans[1], previous_of="test-dev").plans == tuple(digests([plans[1], whole]))
    stack = stacks.our_stack(session.client("cloudformation"), "test-dev")
    assert fetch.fetch_plan(stack, digest, session, tmp_path / "back", print).digest == load_plan(whole).digest
    client.delete_function(FunctionName="test-dev-driver")


@pytest.mark.parametrize("kept", [False, True])
def test_rollback_between_kinds_wants_a_plan_that_was_served(session, samconfig_only, kept):
    one, two = "1" * 12, "2" * 12
    if kept:
        deploy(session, "demo-dev", [one], driver_runs=one)
    deploy(session, "demo-dev", [two, one], driver_runs=one)
    assert called("rollback", samconfig_only, "dev") == (0 if kept else 2)
    assert outputs(session, "demo-dev")["Serving"] == (one if kept else two)


def test_weights_that_functions_fetch_are_downloaded_from_the_stacks_bucket(session, serve, packed, plans, tmp_path):
    fetching = put_weights_in(split_small(tmp_path / "fetching", gang="never"), "fetched")
    plan, [digest] = load_plan(fetching), serve(fetching, weights="s3://filled/weights")
    store = session.client("s3")
    store.create_bucket(Bucket="filled")

    def fill(altered=None):
        for file in fetched([plan]):
            body = altered or (fetching / file.path).read_bytes()
            store.put_object(Bucket="filled", Key=f"weights/{file.sha256}", Body=body)

    fill()
    stack = stacks.our_stack(session.client("cloudformation"), "test-dev")
    assert fetch.fetch_plan(stack, digest, session, tmp_path / "back", print).digest == plan.digest
    for file in (file for stage in plan.stages for file in stage.files):
        assert (tmp_path / "back" / file.path).read_bytes() == (fetching / file.path).read_bytes()
    assert packed(plans[1], previous_of="test-dev").plans[1] == digest
    fill(b"altered")
    with pytest.raises(InputError, match="does not match"):
        fetch.fetch_plan(stack, digest, session, tmp_path / "again", print)


def test_a_directory_that_has_the_plan_that_a_stack_serves_downloads_nothing(
    deployed, packed, plans, monkeypatch, tmp_path
):
    packed(plans[0])
    monkeypatch.setattr(package_module, "fetch_plan", None)
    assert packed(plans[1], previous_of="test-dev").plans[1] == deployed
    assert (tmp_path / "build" / "plans" / deployed / "functions").is_dir()


def of_an_older_format(plan_file):
    plan_file.write_text(json.dumps({**json.loads(plan_file.read_text()), "format": 10}))


def test_a_stack_of_an_older_format_is_replaced_where_that_is_asked_for(
    session, deployed, packed, plans, tmp_path, capsys
):
    packed(plans[0])
    function = tmp_path / "gone" / "plans" / deployed / "functions" / "0-0"
    of_an_older_format(function / "plan.json")
    of_an_older_format(tmp_path / "build" / "driver" / "plans" / deployed / "plan.json")
    name = f"test-dev-{deployed}-0-0"
    session.client("lambda").update_function_code(FunctionName=name, ZipFile=zipped(function))
    advice = "--no-previous, .*serfer deploy apply --replace.*"
    with pytest.raises(PlanError, match=rf"{advice}{deployed}/plan\.json has format 10, .* split the network again"):
        packed(plans[1])
    with pytest.raises(PlanError, match=rf"{advice}the plan {deployed} of test-dev has format 10"):
        packed(plans[1], name="fresh", previous_of="test-dev")
    assert packed(plans[1], keep_previous=False).plans == tuple(digests(plans[1:]))
    assert called("check", str(tmp_path / "build"), "dev") == 2
    message = capsys.readouterr().err
    assert f"test-dev serves the plan {deployed}" in message
    assert "--previous-of test-dev" in message
    assert "serfer deploy apply --replace" in message
    assert called("apply", str(tmp_path / "build"), "dev") == 2  # before anything is built
    assert called("check", str(tmp_path / "build"), "dev", "--replace") == 0
    assert called("check", str(tmp_path / "build"), "prod") == 0  # a stack that there is not yet


@pytest.mark.usefixtures("deployed")
def test_weights_that_are_not_the_plans_are_refused(session, packed, plans):
    [digest] = digests(plans[:1])
    name, made = f"test-dev-{digest}-0-0", io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("python/serfer_plan/stage-0/weights-0.bin", b"others")
    client = session.client("lambda")
    layer = client.publish_layer_version(LayerName=name, Content={"ZipFile": made.getvalue()})
    client.update_function_configuration(FunctionName=name, Layers=[layer["LayerVersionArn"]])
    with pytest.raises(InputError, match=r"stage-0/weights-0\.bin of a layer is not the plan's"):
        packed(plans[1], previous_of="test-dev")


def test_a_missing_stack_or_another_store_is_refused(session, packed, plans, monkeypatch):
    with pytest.raises(UsageError, match="no stack test-dev in us-east-1"):
        packed(plans[1], previous_of="test-dev")
    deploy(session, "test-dev", digests(plans[:1]))
    monkeypatch.setattr(package_module, "our_stack", lambda *_: replace(stacks.our_stack(*_), store="valkey"))
    with pytest.raises(UsageError, match="test-dev has the store valkey"):
        packed(plans[1], previous_of="test-dev")


def test_an_update_that_changes_the_store_is_refused(session, tmp_path, capsys):
    place = build_directory(tmp_path / "b", store="valkey")
    [plan] = json.loads((place / "deployment.json").read_text())["plans"]
    deploy(session, "demo-dev", [plan])
    for replaced in ([], ["--replace"]):
        assert called("check", str(place), "dev", *replaced) == 2
        assert "demo-dev has the store s3, and BUILD was packaged for valkey" in capsys.readouterr().err


@pytest.fixture
def samconfig_only(tmp_path):
    """A BUILD directory of which nothing but the settings of SAM CLI are at hand."""
    (tmp_path / FILE).write_bytes(samconfig(options()))
    return str(tmp_path)


def outputs(session, stack):
    [described] = session.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in described["Outputs"]}


def test_rollback_restores_the_stacks_previous_plan(session, samconfig_only, capsys):
    """One directory for dev and prod: prod went back to a plan that only dev had served."""
    one, two, three = "1" * 12, "2" * 12, "3" * 12
    for plans_ in ([one], [two, one], [three, two]):
        deploy(session, "demo-dev", plans_)
    deploy(session, "demo-prod", [one])
    deploy(session, "demo-prod", [three, one], Days="30")
    assert called("rollback", samconfig_only, "prod") == 0
    assert outputs(session, "demo-prod")["Serving"] == one
    assert outputs(session, "demo-prod")["Days"] == "30"  # the other parameters stay what they are
    assert outputs(session, "demo-dev")["Serving"] == three
    assert called("rollback", samconfig_only, "prod") == 2
    assert f"demo-prod went back to {one} already" in capsys.readouterr().err


def test_rollback_without_a_previous_plan_changes_nothing(session, samconfig_only, capsys):
    one, two = "1" * 12, "2" * 12
    deploy(session, "demo-dev", [one])
    assert called("rollback", samconfig_only, "dev") == 2
    assert "there is none to go back to" in capsys.readouterr().err
    deploy(session, "demo-prod", [two, one])
    assert called("rollback", samconfig_only, "prod") == 2
    assert f"has never served {one}" in capsys.readouterr().err
    deploy(session, "demo-prod", [two, one], Days="30")  # an update of nothing but a parameter
    assert called("rollback", samconfig_only, "prod") == 2
    assert f"has never served {one}" in capsys.readouterr().err
    assert outputs(session, "demo-prod")["Serving"] == two


def test_an_invalid_package_is_refused(session, monkeypatch):
    monkeypatch.setattr(fetch, "_MOST_PACKAGE_BYTES", 10)
    bucket = session.client("s3")
    bucket.create_bucket(Bucket="packages")
    for body, words in ((b"x" * 100, "more than 10 bytes"), (b"x", "not a zip file")):
        bucket.put_object(Bucket="packages", Key="one", Body=body)
        link = bucket.generate_presigned_url("get_object", Params={"Bucket": "packages", "Key": "one"})
        with pytest.raises(InputError, match=words), fetch._downloaded(link):
            pass


@pytest.mark.usefixtures("session")
def test_a_plan_of_a_stack_is_not_kept_where_none_is(plans, tmp_path, capsys):
    words = ("package", plans[0], "--out", tmp_path / "build", "--previous-of", "shop-prod")
    assert called(*words, "--no-previous") == 2
    assert called(*words) == 2
    assert "no stack shop-prod" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()


def test_both_plans_of_a_generation_are_fetched_back(serve, packed, pair, plans, tmp_path):
    generation = ":".join(digests([pair, pair / COLD_DIRECTORY]))
    main, cold = serve(pair, pair / COLD_DIRECTORY, generations=generation)
    deployment = packed(plans[1], previous_of="test-dev")
    assert (deployment.plans[1], deployment.cold) == (main, {main: cold})
    for digest in (main, cold):
        check_same(tmp_path / "gone", tmp_path / "build", digest)
    check_drivers(tmp_path / "build", tmp_path / "gone", main)


def test_rollback_never_serves_a_cold_plan(session, samconfig_only, capsys):
    one, whole, cold = "1" * 12, "2" * 12, "3" * 12
    deploy(session, "demo-dev", [whole, cold], generations=f"{whole}:{cold}")
    assert called("rollback", samconfig_only, "dev") == 2
    assert "there is none to go back to" in capsys.readouterr().err
    deploy(session, "demo-dev", [one, whole, cold], generations=f"{one},{whole}:{cold}")
    assert called("rollback", samconfig_only, "dev") == 0
    assert outputs(session, "demo-dev")["Serving"] == whole


def test_rollback_restores_a_plan_that_came_as_the_other_ones_companion(session, samconfig_only):
    whole, cold = "2" * 12, "3" * 12
    deploy(session, "demo-dev", [whole, cold], generations=f"{whole}:{cold}")
    deploy(session, "demo-dev", [cold, whole], generations=f"{cold},{whole}:{cold}")
    assert called("rollback", samconfig_only, "dev") == 0
    assert outputs(session, "demo-dev")["Serving"] == whole
