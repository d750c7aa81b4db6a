"""Instances of an Auto Scaling group, against moto's server and, where moto knows less than AWS, AWS's own answers."""

import contextlib
import logging

import pytest
from botocore.session import Session
from botocore.stub import Stubber

from serfer.core.errors import UnavailableError
from serfer.fleet.provisioners import auto_scaling
from serfer.fleet.provisioners.auto_scaling import AutoScalingProvisioner, release_this_instance
from serfer.local.server import free_port
from tests.fleet.provisioner_contract import ProvisionerContract, serving
from tests.moto_server import ACCESS, REGION, MotoServer
from tests.support import http_stub

GROUP = "shop-gpu"


@pytest.fixture(scope="module")
def moto():
    with MotoServer() as server:
        server.auto_scaling_groups({GROUP: (0, 3), "other": (2, 5)})
        yield server


SHARED = Session()  # a session's first client of a service takes half a second


@pytest.fixture
def own_session():
    """Have what looks at credentials or regions look for itself."""


@pytest.fixture(autouse=True)
def _access(moto, monkeypatch, request):
    if "own_session" not in request.fixturenames:
        monkeypatch.setattr("botocore.session.get_session", lambda: SHARED)
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL": moto.url}.items():
        monkeypatch.setenv(name, value)


class TestAutoScaling(ProvisionerContract):
    def opened(self):
        return AutoScalingProvisioner(GROUP, 8000)


def group(moto, name):
    with moto.client("autoscaling") as client:
        [described] = client.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return described


def ids(moto, name):
    return {one["InstanceId"] for one in group(moto, name)["Instances"]}


@contextlib.asynccontextmanager
async def opened(name=GROUP, port=8000):
    pool = AutoScalingProvisioner(name, port)
    try:
        yield pool
    finally:
        await pool.close()


async def members():
    async with opened() as pool:
        return await pool.members()


@pytest.fixture
def _emptied(moto):
    yield
    with moto.client("autoscaling") as client:
        client.set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=0)


@pytest.mark.usefixtures("_emptied")
async def test_instances_are_called_by_their_ids_and_reached_at_their_private_addresses(moto):
    async with opened(port=9000) as pool:
        await pool.start(1)
        [one] = await serving(pool, 1)
    assert {one.name} == ids(moto, GROUP)
    with moto.client("ec2") as ec2:
        [described] = ec2.describe_instances(InstanceIds=[one.name])["Reservations"][0]["Instances"]
    assert one.url == f"http://{described['PrivateIpAddress']}:9000"


@pytest.mark.usefixtures("_emptied")
async def test_an_instance_of_another_group_is_never_touched(moto):
    others = ids(moto, "other")
    async with opened() as pool:
        await pool.start(1)
        for name in others:
            await pool.stop(name)
    assert ids(moto, "other") == others
    assert len(ids(moto, GROUP)) == 1


async def test_a_group_keeps_its_min_size_and_that_is_logged_once(moto, caplog):
    others = ids(moto, "other")
    caplog.set_level(logging.WARNING)
    async with opened("other") as pool:
        for _ in range(3):
            await pool.stop(min(others))
    assert ids(moto, "other") == others
    assert caplog.text.count("the group's MinSize is 2") == 1


@pytest.mark.usefixtures("_emptied")
async def test_a_full_group_is_logged_once(caplog):
    caplog.set_level(logging.WARNING)
    async with opened() as pool:
        for _ in range(3):
            await pool.start(3)
        assert len(await pool.members()) == 3
    assert caplog.text.count("3 more instances are wanted and 0 may be: its MaxSize is 3") == 1


async def test_a_group_that_there_is_not():
    async with opened("nowhere") as pool:
        for call in (pool.members(), pool.start(1), pool.stop("i-0123456789abcdef0")):
            with pytest.raises(UnavailableError, match=r"^--instances ec2:nowhere: there is no .* in us-east-1"):
                await call


@pytest.mark.who_may
@pytest.mark.usefixtures("own_session")
async def test_a_missing_permission_is_reported(moto, monkeypatch):
    for name, value in moto.check_permissions().items():
        monkeypatch.setenv(name, value)
    try:
        with pytest.raises(UnavailableError, match=r"^--instances ec2:shop-gpu: these credentials may not"):
            await members()
    finally:
        moto.check_nothing()


@pytest.mark.usefixtures("own_session")
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AWS_DEFAULT_REGION": None}, "You must specify a region: set AWS_DEFAULT_REGION"),
        ({"AWS_PROFILE": "nobody"}, "profile .*nobody.* could not be found"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "Invalid endpoint"),
    ],
)
async def test_unreachable_aws_is_reported(variables, words, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr(auto_scaling, "_TRIES", 1)
    with pytest.raises(UnavailableError, match=f"^--instances ec2:shop-gpu: .*{words}") as caught:
        await members()
    assert "\n" not in str(caught.value)


XML = {"Content-Type": "text/xml"}
THROTTLED = b"<ErrorResponse><Error><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>"
EMPTY = (
    b"<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult><AutoScalingGroups><member>"
    b"<AutoScalingGroupName>shop-gpu</AutoScalingGroupName><DesiredCapacity>0</DesiredCapacity><Instances/>"
    b"</member></AutoScalingGroups></DescribeAutoScalingGroupsResult></DescribeAutoScalingGroupsResponse>"
)


@pytest.mark.parametrize(("times", "tries"), [(1, 4), (2, 2)])
async def test_throttling_is_tried_again_and_reported_in_the_end(times, tries, monkeypatch):
    monkeypatch.setattr(auto_scaling, "_TRIES", tries)
    with http_stub.serving() as aws:
        aws.replies = [(400, XML, THROTTLED)] * times + [(200, XML, EMPTY)]
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
        if times < tries:
            assert await members() == []
        else:
            with pytest.raises(UnavailableError, match="AWS refuses to describe_auto_scaling_groups: Throttling: Rate"):
                await members()
    assert len(aws.requests) == 2


@pytest.fixture
def reported(monkeypatch):
    """Return what makes AWS describe a group of instances by their states, with addresses unless there are none."""

    def reported(instances, desired, unhealthy=(), addressed=(), **more):
        clients = {
            name: SHARED.create_client(name, region_name=REGION, aws_access_key_id="k", aws_secret_access_key="s")  # noqa: S106 - of nobody
            for name in ("autoscaling", "ec2")
        }
        stubs = {name: Stubber(client) for name, client in clients.items()}
        fixed = {"AvailabilityZone": "a", "ProtectedFromScaleIn": False}
        health = {True: "Unhealthy", False: "Healthy"}
        described = [
            {"InstanceId": name, "LifecycleState": state, "HealthStatus": health[name in unhealthy], **fixed}
            for name, state in instances.items()
        ]
        group = {"AutoScalingGroupName": GROUP, "MinSize": 0, "MaxSize": 8, "DesiredCapacity": desired, **more}
        group |= {"DefaultCooldown": 0, "AvailabilityZones": ["a"], "HealthCheckType": "EC2", "CreatedTime": 0}
        groups = [{**group, "Instances": described}]
        stubs["autoscaling"].add_response("describe_auto_scaling_groups", {"AutoScalingGroups": groups})
        if addressed:
            known = [{"InstanceId": name, "PrivateIpAddress": f"10.0.0.{n}"} for n, name in enumerate(addressed)]
            stubs["ec2"].add_response("describe_instances", {"Reservations": [{"Instances": known}]})
        monkeypatch.setattr(auto_scaling, "_connect", lambda service: clients[service])
        for stub in stubs.values():
            stub.activate()
        return stubs

    return reported


async def test_auto_scaling_states_map_to_ours_without_the_warm_pool(reported):
    states = [
        *("Pending", "Pending:Wait", "InService", "Terminating:Wait", "Standby", "EnteringStandby", "Warmed:Stopped"),
        *("Warmed:Pending:Wait", "Terminated", "Detaching", "Warmed:Running", "Quarantined"),
    ]
    reported({f"i-{number}": state for number, state in enumerate(states, 1)}, 3, addressed=["i-1", "i-3"])
    found = {one.name: (one.state, one.url) for one in await members()}
    assert {name: state for name, (state, _) in found.items()} == {
        **dict.fromkeys(("i-1", "i-2"), "booting"),
        "i-3": "serving",
        **dict.fromkeys(("i-4", "i-5", "i-6", "i-10", "i-12"), "draining"),
    }
    assert (found["i-1"][1], found["i-2"][1]) == ("http://10.0.0.0:8000", None)


BOTH = {"i-1": "InService", "i-2": "InService"}
THREE = {**BOTH, "i-3": "InService"}


@pytest.mark.parametrize(
    ("instances", "desired", "unhealthy", "expected"),
    [
        # What is unhealthy drains, and the group replaces it; a replacement is a member once it serves.
        (BOTH, 2, ["i-2"], {"i-1": "serving", "i-2": "draining", "asked-1": "booting"}),
        ({**BOTH, "i-3": "Pending:Wait"}, 2, [], dict.fromkeys(BOTH, "serving")),
        (THREE, 2, [], dict.fromkeys(THREE, "serving")),
        # What was not delivered yet boots.
        (
            {"i-1": "InService", "i-2": "Terminating"},
            3,
            [],
            {"i-1": "serving", "i-2": "draining", "asked-1": "booting", "asked-2": "booting"},
        ),
    ],
)
async def test_members_are_those_that_the_group_has_or_was_asked_for(reported, instances, desired, unhealthy, expected):
    reported(instances, desired, unhealthy, [*instances])
    found = await members()
    assert {one.name: one.state for one in found} == expected
    assert {one.name for one in found if one.url is None} == {name for name in expected if name.startswith("asked")}


async def test_stopping_an_undelivered_instance_lowers_the_desired_capacity_by_one(reported):
    stubs = reported({"i-1": "InService", "i-2": "Terminating"}, 3)
    stubs["autoscaling"].add_response("set_desired_capacity", {}, {"AutoScalingGroupName": GROUP, "DesiredCapacity": 2})
    async with opened() as pool:
        assert await pool.stop("asked-1")
    stubs["autoscaling"].assert_no_pending_responses()


@pytest.mark.parametrize(
    ("instances", "group", "name"),
    [
        ({"i-2": "InService"}, {"desired": 1, "unhealthy": ["i-2"]}, "i-2"),
        (THREE, {"desired": 2}, "i-3"),  # the group ends one
        ({"i-0": "InService", "i-1": "Pending"}, {"desired": 2}, "asked-1"),  # delivered meanwhile
        ({"i-0": "InService"}, {"desired": 2, "MinSize": 2}, "asked-1"),
        *(({"i-1": state}, {"desired": 1}, "i-1") for state in ("Terminating", "Terminating:Wait", "Terminated")),
        ({"i-1": "Warmed:Stopped"}, {"desired": 1}, "i-1"),
    ],
)
async def test_what_the_group_ends_or_keeps_by_itself_is_not_stopped(reported, instances, group, name):
    reported(instances, **group)
    async with opened() as pool:
        assert not await pool.stop(name)  # a request would find no stub


async def test_an_address_is_requested_once(reported):
    reported({"i-1": "InService"}, 1, addressed=["i-1"])
    async with opened() as pool:
        first = await pool.members()
        again = reported({"i-1": "InService"}, 1)
        pool._clients["autoscaling"] = auto_scaling._connect("autoscaling")
        assert await pool.members() == first
        again["autoscaling"].assert_no_pending_responses()


TOKEN = b"AQAEAJ_token=="


@contextlib.contextmanager
def on_instance(monkeypatch, name):
    told = {"/latest/meta-data/instance-id": name, "/latest/meta-data/placement/region": REGION.encode()}

    def answer(request):
        if request.method == "PUT":
            lasts = int(request.headers["x-aws-ec2-metadata-token-ttl-seconds"]) > 0
            body = TOKEN if request.path == "/latest/api/token" and lasts else None
        else:
            is_signed = request.headers.get("x-aws-ec2-metadata-token", "").encode() == TOKEN
            body = told.get(request.path) if is_signed else None
        return 404 if body is None else 200, {}, body or b""

    with http_stub.serving() as service:
        service.answer = answer
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{service.url}/")
        yield


@pytest.mark.usefixtures("_emptied")
async def test_an_instance_leaves_its_group_without_replacement(moto, monkeypatch):
    async with opened() as pool:
        await pool.start(2)
        [one, other] = [member.name for member in await serving(pool, 2)]
    with on_instance(monkeypatch, one.encode()):
        assert release_this_instance() is True
    assert ids(moto, GROUP) == {other}
    assert group(moto, GROUP)["DesiredCapacity"] == 1


def test_an_instance_outside_any_group_logs_it_and_continues(monkeypatch, caplog):
    with on_instance(monkeypatch, b"i-0fedcba9876543210"), caplog.at_level(logging.WARNING):
        monkeypatch.setattr(auto_scaling, "_TRIES", 1)
        assert release_this_instance() is False
    assert "this machine stays in its Auto Scaling group, and is billed: auto_scaling_release" in caplog.text


@pytest.mark.parametrize("wrong", [b"", b"<html>", b"i-xyz", b"i-0123\r\nX: y", b"i-" + b"0" * 4000, b"\xff"])
def test_invalid_metadata_is_refused(monkeypatch, caplog, wrong):
    with on_instance(monkeypatch, wrong), caplog.at_level(logging.WARNING):
        assert release_this_instance() is False
    assert "no metadata service answers" in caplog.text


def test_a_missing_metadata_service_is_logged_at_once(monkeypatch, caplog):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with caplog.at_level(logging.WARNING):
        assert release_this_instance() is False
    assert "AWS_EC2_METADATA_SERVICE_ENDPOINT: no metadata service answers" in caplog.text
