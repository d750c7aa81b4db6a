"""What a policy has learnt survives restarts; what cannot be taken is refused, and the service starts without it."""

import asyncio
import json
import logging
import stat
from dataclasses import replace
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import POLICIES, make_policy
from serfer.control.policy import Learner
from serfer.control.router import Router
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.fleet import policy_state
from serfer.fleet.decider import Decider
from serfer.fleet.policy_state import (
    StateFile,
    StateKeeper,
    StateOwner,
    check_apart,
    decode_state,
    encode_state,
    open_place,
)
from tests.control.worlds import QPS, scenario, seen, steps
from tests.moto_server import ACCESS, MotoServer

WORLD = scenario(5.0, boot_s=40.0)
OWNER = StateOwner("alexnet", "break-even", WORLD.digest)
LEARNERS = [name for name in POLICIES if isinstance(make_policy(name, WORLD), Learner)]
BURSTS = [*steps([(300, 0.0), (120, 1.5 * QPS)] * 8, 5.0)]
SNAPSHOT = {"version": 1, "numbers": [0.1, 1 / 3, 2e-300], "text": "ü\n"}
DATA = encode_state(OWNER, 1.7e9, SNAPSHOT)


def new_policy(world=WORLD, name="break-even"):
    return make_policy(name, world)


class Memory:
    """A place that a test looks into, fails or holds up."""

    def __init__(self):
        self.data = None
        self.writes = 0
        self.fails = None
        self.open = Event()
        self.open.set()

    def read(self, most_bytes):
        if self.fails:
            raise self.fails
        assert self.data is None or len(self.data) <= most_bytes
        return self.data

    def write(self, data):
        assert self.open.wait(60)
        if self.fails:
            raise self.fails
        self.data, self.writes = data, self.writes + 1

    def set_aside(self):
        pass


def messages(caplog):
    """Return the warnings; a service of an earlier test may have had more logged than these."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.serfer["message"] for record in records if record.message == "policy state"]


def run(place, load, *, leads=True, owner=OWNER, world=WORLD):
    """Run a service with a load and end it; returns its decisions and what it had."""
    keeper = StateKeeper(place, owner, lambda: 1.7e9)
    learnt = keeper.restored(lambda: new_policy(world, owner.policy))
    router = Router(world, learnt or new_policy(world, owner.policy))
    decider = Decider(router, keeper=keeper, fresh=learnt is None)

    async def scene():
        plans = [await decider.decide(seen(seconds, rate), leads=leads) for seconds, rate in load]
        await decider.close(leads=leads)
        return plans

    return asyncio.run(scene()), router.policy, keeper


@pytest.mark.parametrize("name", LEARNERS)
def test_a_restarted_service_decides_as_if_it_had_not_stopped(tmp_path, name):
    place, owner = open_place(str(tmp_path / "new" / "folder"), "alexnet", name), replace(OWNER, policy=name)
    half = len(BURSTS) // 2
    first, _, _ = run(place, BURSTS[:half], owner=owner)
    second, _, keeper = run(place, BURSTS[half:], owner=owner)
    policy = new_policy(name=name)
    assert first + second == [policy.observe(seen(seconds, rate)) for seconds, rate in BURSTS]
    assert not keeper.troubles
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert (file.name, stat.S_IMODE(file.stat().st_mode)) == (f"alexnet.{name}.json", 0o600)


def test_the_leader_saves_every_few_minutes_and_at_its_end_and_no_other_driver_does():
    place = Memory()
    run(place, BURSTS[:10], leads=False)
    assert place.writes == 0
    run(place, BURSTS[:10])  # 50 s
    assert place.writes == 1

    class Awaited(Memory):
        """Is done with a write before the next decision."""

        def write(self, data):
            super().write(data)
            written.set()

    written, place = Event(), Awaited()
    keeper = StateKeeper(place, OWNER)
    decider = Decider(Router(WORLD, new_policy()), keeper=keeper)

    async def scene():
        for number, (seconds, rate) in enumerate(BURSTS[:130], 1):
            await decider.decide(seen(seconds, rate), leads=True)
            if number % 60 == 0:  # 300 s
                assert await asyncio.to_thread(written.wait, 60)
                written.clear()
        assert place.writes == 2

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-20], "torn"),
        (lambda data: data.replace(b'"version":1', b'"version":7', 1), "newer version, 7"),
        (lambda data: data.replace(b'"break-even"', b'"ski-rental"', 1), "of the policy 'ski-rental'"),
        (lambda data: data.replace(WORLD.digest.encode(), b"f" * 64), "other prices or speeds"),
        (lambda _: encode_state(OWNER, 1.7e9, {"version": 2}), "older layout, 2"),  # with values that were learnt
        (lambda data: b"\0" * len(data), "not a policy's state"),
        (lambda data: data + b" " * 100_000_000, "more than"),
    ],
)
def test_a_state_that_cannot_be_taken_is_refused_named_and_set_aside(tmp_path, caplog, damage, words):
    place = StateFile(tmp_path, "state.json")
    run(place, BURSTS)
    caplog.clear()
    damaged = damage((tmp_path / "state.json").read_bytes())
    (tmp_path / "state.json").write_bytes(damaged)
    _, policy, keeper = run(place, BURSTS[-1:])
    (message,) = messages(caplog)
    assert message.startswith("refused, so the policy starts with nothing learnt: ")
    assert words in message
    assert keeper.troubles["state"] == 1
    assert policy.snapshot() != new_policy().snapshot()  # it goes on learning
    assert (tmp_path / "state.refused.json").read_bytes() == damaged
    assert StateKeeper(place, OWNER).restored(new_policy) is not None


def test_a_snapshot_that_the_policy_refuses_leaves_no_half_of_it(caplog):
    place = Memory()
    other = scenario(5.0, boot_s=4.0)
    run(place, [*BURSTS, *[(5.0, 0.0)] * 60])
    caplog.clear()
    keeper = StateKeeper(place, OWNER)
    assert keeper.restored(lambda: new_policy(other)) is None  # its gaps are larger than a start costs there
    assert "gap should be" in messages(caplog)[0] or "boot should be" in messages(caplog)[0]


def test_an_unreachable_place_is_logged_once_and_counted_and_delays_no_decision(caplog):
    place = Memory()
    place.fails = UnavailableError("S3: no route")
    plans, _, keeper = run(place, [(300.0, QPS)] * 3)
    assert len(plans) == 3
    assert keeper.troubles["state"] >= 2
    assert messages(caplog)[0] == "refused, so the policy starts with nothing learnt: S3: no route"
    assert messages(caplog)[1:] == ["not saved: S3: no route"]


def test_while_a_state_is_written_the_latest_one_waits():
    place, policy = Memory(), new_policy()
    place.open.clear()
    keeper = StateKeeper(place, OWNER)
    for seconds, rate in BURSTS[:100]:
        policy.observe(seen(seconds, rate))
        keeper.offer(policy)
    place.open.set()
    keeper.close(60)
    assert StateKeeper(place, OWNER).restored(new_policy).snapshot() == policy.snapshot()
    assert 1 <= place.writes <= 3
    assert not keeper.troubles


def test_a_place_that_hangs_is_not_waited_for(caplog):
    place = Memory()
    place.open.clear()
    keeper = StateKeeper(place, OWNER)
    keeper.offer(new_policy())
    keeper.close(0.0)
    assert messages(caplog) == ["not saved: TimeoutError: it was not written within 0 s"]
    place.open.set()


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in LEARNERS])
def test_a_policy_that_keeps_nothing_is_named(caplog, name):
    place = Memory()
    keeper = StateKeeper(place, OWNER)
    assert keeper.restored(lambda: make_policy(name, WORLD)) is None
    assert messages(caplog) == [
        f"{name} keeps nothing: it has no snapshot and restore, so it starts with nothing learnt"
    ]
    keeper.offer(make_policy(name, WORLD))
    keeper.close(5.0)
    assert place.data is None


@pytest.mark.parametrize("where", ["", "a\0b", "ftp://a/b", "s3://", "s3://A_B/c", "s3://bucket/p?q=1", "redis://a"])
def test_places_that_are_none_are_refused(where):
    with pytest.raises(UsageError, match="--policy-state"):
        open_place(where, "m", "p")


@pytest.mark.parametrize(
    ("where", "model", "place"),
    [
        ("s3://bucket", "alexnet", "s3://bucket/alexnet.break-even.json"),
        ("s3://bucket/a/b/", "alexnet", "s3://bucket/a/b/alexnet.break-even.json"),
        ("/var/lib", "../../etc", "/var/lib/b2463a0ae0a18c21.break-even.json"),
    ],
)
def test_a_place_has_a_name_for_model_and_policy(where, model, place):
    if model == "../../etc":
        name = str(open_place(where, model, "break-even"))
        assert name.startswith("/var/lib/")
        assert name.count("/") == 3
    else:
        assert str(open_place(where, model, "break-even")) == place


def test_a_place_in_the_store_of_activations_is_refused():
    for where, store in [
        ("s3://bucket/store/state", "s3://bucket/store"),
        ("s3://bucket/state", "s3://bucket"),
        ("/srv/store/state", "file:///srv/store"),
        ("s3://bucket/store", "s3://bucket/store?region=eu-west-1"),
    ]:
        with pytest.raises(UsageError, match="inside the store"):
            check_apart(where, store)
    check_apart("s3://bucket/state", "s3://bucket/store")
    check_apart("/srv/state", "redis://127.0.0.1:6379/0")


@pytest.fixture(scope="module")
def server():
    with MotoServer() as server:
        with server.client("s3") as client:
            for bucket, versions in (("versioned", "Enabled"), ("plain", "Suspended")):
                client.create_bucket(Bucket=bucket)
                client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": versions})
        yield server


@pytest.fixture
def access(monkeypatch, server):
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL_S3": server.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("access")
def test_a_versioned_bucket_keeps_the_state_and_earlier_ones(server, caplog):
    place = open_place("s3://versioned/policies", "alexnet", "break-even")
    run(place, BURSTS[:50])
    plans, _, keeper = run(place, BURSTS[50:])
    policy = new_policy()
    assert plans == [policy.observe(seen(seconds, rate)) for seconds, rate in BURSTS][50:]
    assert not keeper.troubles
    assert messages(caplog) == []
    with server.client("s3") as client:
        versions = client.list_object_versions(Bucket="versioned")["Versions"]
    assert {version["Key"] for version in versions} == {"policies/alexnet.break-even.json"}
    assert len(versions) >= 2


@pytest.mark.usefixtures("access")
def test_a_bucket_without_versions_is_named(caplog):
    run(open_place("s3://plain", "alexnet", "break-even"), BURSTS[:5])
    assert messages(caplog) == ["the bucket plain keeps no versions: what a new state replaces is lost"]


@pytest.mark.usefixtures("access")
def test_a_bucket_that_is_not_there_lets_the_service_start(caplog):
    _, _, keeper = run(open_place("s3://no-such-bucket", "alexnet", "break-even"), BURSTS[:5])
    assert keeper.troubles["state"] == 2
    assert all("NoSuchBucket" in message for message in messages(caplog))


def test_an_object_that_is_too_large_is_not_read_whole(monkeypatch, server, access):  # noqa: ARG001 - fixtures
    with server.client("s3") as client:
        client.put_object(Bucket="versioned", Key="m.p.json", Body=b"x" * 1000)
    with pytest.raises(InputError, match="more than 100 bytes"):
        open_place("s3://versioned", "m", "p").read(100)


def test_a_state_comes_back_as_it_was():
    assert decode_state(DATA, OWNER) == SNAPSHOT


@settings(derandomize=True, max_examples=200)
@given(length=st.integers(0, len(DATA) - 1))
def test_a_torn_state_is_refused(length):
    with pytest.raises(InputError):
        decode_state(DATA[:length], OWNER)


@settings(derandomize=True, max_examples=200)
@given(at=st.integers(DATA.index(b"\n") + 1, len(DATA) - 1), bit=st.integers(0, 7))
def test_an_altered_snapshot_is_refused(at, bit):
    with pytest.raises(InputError, match="SHA-256"):
        decode_state(DATA[:at] + bytes([DATA[at] ^ 1 << bit]) + DATA[at + 1 :], OWNER)


@settings(derandomize=True, max_examples=200)
@given(data=st.binary(max_size=300))
def test_anything_else_is_refused(data):
    with pytest.raises(InputError):
        decode_state(data, OWNER)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(OWNER, model="resnet"), "about the load of 'alexnet', not of 'resnet'"),
        (replace(OWNER, policy="ski-rental"), "of the policy 'break-even', not of 'ski-rental'"),
        (replace(OWNER, scenario="1" * 64), "other prices or speeds"),
    ],
)
def test_another_owners_state_is_refused_by_name(other, words):
    with pytest.raises(InputError, match=words):
        decode_state(DATA, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "newer version, 2"),
        ({"version": "x"}, "another version"),
        ({"format": "x"}, "not a policy's state"),
        ({"bytes": 1}, "torn"),
        ({"bytes": None}, "bytes should be a whole number"),
        ({"more": 1}, "unknown 'more'"),
    ],
)
def test_other_first_lines_are_refused(changes, words):
    first, body = DATA.split(b"\n", 1)
    with pytest.raises(InputError, match=words):
        decode_state(json.dumps({**json.loads(first), **changes}).encode() + b"\n" + body, OWNER)


def test_what_is_no_json_or_too_large_is_not_kept(monkeypatch):
    with pytest.raises(ValueError, match="JSON"):
        encode_state(OWNER, 0.0, {"a": float("nan")})
    monkeypatch.setattr(policy_state, "MAX_SNAPSHOT_BYTES", 10)
    with pytest.raises(ValueError, match="larger than 10"):
        encode_state(OWNER, 0.0, SNAPSHOT)
