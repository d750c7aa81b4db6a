"""A fleet's stack as moto's CloudFormation makes it: what its instances are told, and its GPU pool.

Stacks of function drivers are deployed by SAM CLI (test_deployed.py), to ministack, which has no fleets. What
moto lacks is named here: cfn-lint has looked at it (test_template.py).
"""

import base64
import io
import json
import re
import warnings
import zipfile

import boto3
import pytest

from serfer.fleet.provisioner_url import open_provisioner
from serfer.sam.options import digest12
from tests.sam.offered import POOL, POOLED, SPOT_POOL, plans, template, translated

pytestmark = [
    pytest.mark.filterwarnings("ignore:Tried to parse .* not supported by moto:UserWarning"),
    pytest.mark.usefixtures("aws"),
]
STACK = "shop"
# No CloudFormation of moto's for these; the rest of a stack comes up without them.
LACKING = {
    "AWS::AutoScaling::ScalingPolicy",
    "AWS::AutoScaling::WarmPool",
    "AWS::Budgets::Budget",
    "AWS::CloudWatch::Alarm",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::Logs::MetricFilter",
    "AWS::S3::BucketPolicy",
    "AWS::SNS::TopicPolicy",
    "AWS::WAFv2::WebACL",
    "AWS::WAFv2::WebACLAssociation",
}


def known_to_moto(value):
    """Put in what moto cannot work out: Fn::Cidr, and Fn::Select with a parameter for its index."""
    if isinstance(value, list):
        return [known_to_moto(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"Ref"} and value["Ref"] in {"FirstZone", "SecondZone"}:
        return 0 if value["Ref"] == "FirstZone" else 1
    index, chosen = value.get("Fn::Select", (0, None))
    if isinstance(chosen, dict) and "Fn::Cidr" in chosen:
        return f"10.64.{index}.0/24"
    return {key: known_to_moto(item) for key, item in value.items()}


class Stack:
    def __init__(self, *chosen, **more):
        self.source = known_to_moto(translated(template(*chosen, **more)))
        self._upload()
        self._client = boto3.client("cloudformation")
        certificate = boto3.client("acm").request_certificate(DomainName="example.com")
        self._parameters = {
            "AlarmEmail": "me@example.com",
            "MonthlyBudgetUsd": "10",
            "CertificateArn": certificate["CertificateArn"],
        }
        if "GpuImage" in self.source["Parameters"]:  # moto knows no Deep Learning AMI
            self.source["Parameters"]["GpuImage"]["Default"] = self.source["Parameters"]["DriverImage"]["Default"]
        assert self._create() == LACKING & {resource["Type"] for resource in self.source["Resources"].values()}

    @property
    def outputs(self):
        (stack,) = self._client.describe_stacks(StackName=STACK)["Stacks"]
        assert stack["StackStatus"] in {"CREATE_COMPLETE", "UPDATE_COMPLETE"}
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def _create(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._client.create_stack(
                StackName=STACK,
                TemplateBody=json.dumps(self.source),
                Parameters=[
                    {"ParameterKey": name, "ParameterValue": value} for name, value in self._parameters.items()
                ],
                Capabilities=["CAPABILITY_IAM"],
            )
        failures = [re.search(r"Tried to parse (\S+) but", str(one.message)) for one in caught]
        return {match[1] for match in failures if match}

    def _upload(self):
        store, package = boto3.client("s3"), io.BytesIO()
        with zipfile.ZipFile(package, "w") as archive:
            archive.writestr("plan.json", "{}")
        store.create_bucket(Bucket="artefacts")
        for resource in self.source["Resources"].values():
            code = resource.get("Properties", {}).get("Code") or resource.get("Properties", {}).get("Content")
            if isinstance(code, dict) and "S3Key" in code:
                store.put_object(Bucket="artefacts", Key=code["S3Key"], Body=package.getvalue())


def user_data(named="Drivers"):
    groups = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    (group,) = (one for one in groups if named in one["AutoScalingGroupName"])
    chosen = group["LaunchTemplate"]
    (version,) = boto3.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=chosen["LaunchTemplateId"], Versions=[chosen["Version"]]
    )["LaunchTemplateVersions"]
    return base64.b64decode(version["LaunchTemplateData"]["UserData"]).decode()


def driver_settings():
    """Return what a driver's instance runs when it starts, and the variables among it."""
    text = user_data()
    variables = re.search(r"serfer\.env <<'END'\n(.*?)\nEND", text, re.DOTALL)[1]
    return text, dict(line.split("=", 1) for line in variables.splitlines())


def test_a_fleet_starts_and_its_instances_get_their_settings():
    stack = Stack("fleet", "s3", "push")
    outputs, (text, environ) = stack.outputs, driver_settings()
    assert outputs["Url"].startswith("https://")
    assert environ["SERFER_STORE"] == outputs["Store"]
    assert environ["SERFER_PLAN"] == f"plans/{digest12(plans()[0])}"
    assert environ["SERFER_KEYS_FILE"] == "/var/lib/serfer/keys.json"
    assert environ["AWS_DEFAULT_REGION"] == "us-east-1"
    assert f"s3://{outputs['KeysBucket']}/keys.json" in text
    assert "${" not in text
    assert len(text) < 16_384


async def test_a_pool_starts_empty_and_drivers_start_and_stop_its_instances():
    Stack(*POOLED, gpu=POOL)
    digest = digest12(plans()[0])
    _, environ = driver_settings()
    assert environ["SERFER_INSTANCES"] == f"ec2:{STACK}-gpu-{digest}"
    assert environ["SERFER_SCENARIO_FILE"] == f"{environ['SERFER_PLAN']}/scenario.toml"

    for plan in plans():
        script = user_data(f"{STACK}-gpu-{digest12(plan)}")
        assert "${" not in script
        assert len(script) < 16_384
        assert f"--auto-scaling-group-name '{STACK}-gpu-{digest12(plan)}'" in script
    pool = open_provisioner(environ["SERFER_INSTANCES"])
    assert await pool.members() == []
    await pool.start(POOL.most + 1)
    members = await pool.members()
    assert len(members) == POOL.most
    for one in members:
        await pool.stop(one.name)
    assert await pool.members() == []
    await pool.close()


async def test_a_pool_with_spot_instances_has_a_group_for_each_market():
    Stack(*POOLED, gpu=SPOT_POOL)
    digest = digest12(plans()[0])
    _, environ = driver_settings()
    assert environ["SERFER_ROUTE"] == "mark-spot"
    groups = [f"{STACK}-gpu-{digest}", f"{STACK}-gpu-{digest}-spot"]
    assert environ["SERFER_INSTANCES"] == f"g6.xlarge=ec2:{groups[0]},g6.xlarge/spot=ec2:{groups[1]}"
    for group in groups:
        pool = open_provisioner(f"ec2:{group}")
        await pool.start(1)
        (one,) = await pool.members()
        assert await pool.stop(one.name)
        assert await pool.members() == []
        await pool.close()


def test_every_listed_gap_of_moto_is_used():
    """An entry that no template needs any more would hide what moto has learnt."""
    source = translated(template(*POOLED, gpu=POOL))
    assert {resource["Type"] for resource in source["Resources"].values()} >= LACKING
