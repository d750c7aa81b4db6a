"""What drivers' roles allow is enough for a registry in S3, and no more: moto decides as IAM would."""

import json
from pathlib import Path

import pytest

from serfer.core.errors import UnavailableError
from serfer.core.variants import Canary, CanaryLimits
from serfer.registry import open_registry
from tests.applications.worlds import NOW, register, variant, version
from tests.moto_server import ACCESS, MotoServer
from tests.sam.offered import SERVES, template

BUCKET = "models"


@pytest.fixture
def moto():
    with MotoServer() as server:
        with server.client("s3") as client:
            client.create_bucket(Bucket=BUCKET)
        yield server


@pytest.fixture
def access(moto, monkeypatch):
    """Lead botocore to moto's S3; returns what acts as the drivers of a deployment from then on."""
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL_S3": moto.url, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)

    def act(drivers):
        """Return the folders that the drivers may list: moto heeds no conditions."""
        allowed = template(drivers, "s3", "push", applications=SERVES)["Resources"]["DriverRole"]["Properties"]
        [policy] = allowed["Policies"]
        ours = [
            one
            for one in policy["PolicyDocument"]["Statement"]
            if one["Sid"] in {"Applications", "Registry", "RecordVersions"}
        ]
        document = json.dumps({"Version": "2012-10-17", "Statement": [plain(one) for one in ours]})
        with moto.client("iam") as client:
            client.create_user(UserName=drivers)
            client.put_user_policy(UserName=drivers, PolicyName="driver", PolicyDocument=document)
            key = client.create_access_key(UserName=drivers)["AccessKey"]
        moto.check_permissions()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        [names] = [one for one in ours if "s3:ListBucket" in one["Action"]]
        return names["Condition"]["StringEquals"]["s3:prefix"]

    yield act
    moto.check_nothing()


def plain(value):
    if isinstance(value, dict):
        return (
            value["Fn::Sub"].replace("${AWS::Partition}", "aws")
            if "Fn::Sub" in value
            else {name: plain(each) for name, each in value.items()}
        )
    return [plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.who_may
@pytest.mark.parametrize("drivers", ["function", "fleet"])
def test_drivers_read_their_applications_and_a_fleets_take_canaries_back(access, drivers):
    registry = open_registry(SERVES.registry)
    for name in ("faces", "others"):
        register(registry, name, version("net", 1, variant("net.one")), version("net", 2, variant("net.two")))
    registry.update("faces", lambda record: record.with_canary(Canary({"net": 2}, 0.5, NOW, "test", CanaryLimits())))
    prefix = SERVES.registry.removeprefix(f"s3://{BUCKET}").lstrip("/")
    assert access(drivers) == [f"{prefix}/documents/applications/{name}.json/".lstrip("/") for name in SERVES.names]
    registry = open_registry(SERVES.registry, create=False)
    assert registry.latest("faces").application.canary is not None
    with pytest.raises(UnavailableError):
        registry.latest("others")
    with pytest.raises(UnavailableError):
        registry.store.put_artefact(Path(__file__))

    def take_back():
        return registry.update("faces", lambda record: record.with_canary_taken_back("worse"))

    if drivers == "fleet":
        assert take_back().canary is None
    else:
        with pytest.raises(UnavailableError):
            take_back()
