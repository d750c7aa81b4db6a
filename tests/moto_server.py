"""CloudFormation and IAM as moto plays them, in a server of its own."""

import contextlib
import http.client
import json
import subprocess
import sys

from botocore.session import Session

from serfer.local.die_with_parent import dying_with_me
from serfer.local.server import LocalServer, free_port

REGION = "us-east-1"
ACCESS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": REGION}


class MotoServer(LocalServer):
    READY_S, POLL_S = 60.0, 0.05

    def __init__(self):
        self.port = free_port()
        self._process = subprocess.Popen(
            dying_with_me(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
        )
        assert self._comes_up()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def variables(self):
        """Return what leads botocore to this server's CloudFormation."""
        return {**ACCESS, "AWS_ENDPOINT_URL_CLOUDFORMATION": self.url}

    @contextlib.contextmanager
    def client(self, service):
        client = Session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="local",
            aws_secret_access_key="local",  # noqa: S106 - nobody looks at it
        )
        try:
            yield client
        finally:
            client.close()

    def stack(self, name, outputs):
        template = {
            "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}},
            "Outputs": {key: {"Value": value} for key, value in outputs.items()},
        }
        with self.client("cloudformation") as client:
            client.create_stack(StackName=name, TemplateBody=json.dumps(template))

    def auto_scaling_groups(self, sizes):
        """Create groups of these least and most sizes."""
        with self.client("ec2") as ec2:
            subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
            data = {"ImageId": "ami-12c6146b", "InstanceType": "g6.xlarge"}
            ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data)
        with self.client("autoscaling") as client:
            for name, (least, most) in sizes.items():
                client.create_auto_scaling_group(
                    AutoScalingGroupName=name,
                    MinSize=least,
                    MaxSize=most,
                    VPCZoneIdentifier=subnet,
                    LaunchTemplate={"LaunchTemplateName": "gpu"},
                )

    def check_permissions(self):
        """Create a user who may do nothing, have permissions checked from now on, and return the user's access."""
        with self.client("iam") as client:
            client.create_user(UserName="nobody")
            key = client.create_access_key(UserName="nobody")["AccessKey"]
        self._post("/moto-api/reset-auth", b"0")
        return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

    def check_nothing(self):
        self._post("/moto-api/reset-auth", b"inf")

    def _post(self, path, body):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("POST", path, body)
            assert connection.getresponse().status == 200

    def _answers(self):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)) as connection:
            try:
                connection.request("GET", "/moto-api/data.json")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False
