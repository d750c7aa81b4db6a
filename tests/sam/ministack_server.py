"""CloudFormation, Lambda and S3 as ministack plays them, in a server of its own."""

import contextlib
import http.client
import json
import subprocess
import sys
from pathlib import Path

from serfer.local.die_with_parent import dying_with_me
from serfer.local.server import LocalServer, free_port
from serfer.sam.options import function_id, weights_id

REGION = "us-east-1"
PYTHON = Path(sys.prefix) / "ministack" / "bin" / "python"
TEMPLATE = {  # as much of a deployment's template as says what a stack serves
    "Description": "SerFer 0: images classified by functions, engine push, store s3, drivers function",
    "Parameters": {"Serving": {"Type": "String", "Default": "current"}, "Days": {"Type": "String", "Default": "14"}},
}
LOG = {"Type": "AWS::Logs::LogGroup"}


class MinistackServer(LocalServer):
    READY_S, POLL_S = 60.0, 0.05

    def __init__(self):
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            dying_with_me(str(PYTHON), "-m", "hypercorn", "-w", "0", "--bind", address, "ministack.app:app"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"GATEWAY_PORT": str(self.port), "MINISTACK_REGION": REGION, "IOT_MTLS_ENABLED": "0"},  # one port
        )
        assert self._comes_up()

    @property
    def variables(self):
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _answers(self):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)) as connection:
            try:
                connection.request("GET", "/_ministack/health")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False


def deploy(session, name, plans, serving="current", generations=None, weights=None, driver_runs=None, **parameters):
    """Create or update a stack whose outputs say that it has these plans, as `sam deploy` would."""
    formation = session.client("cloudformation")
    chosen = {"Fn::If": ["Current", plans[0], {"Ref": "Serving"}]}
    template = {
        **TEMPLATE,
        "Resources": {
            "Driver": {**LOG, "Properties": {"LogGroupName": {"Fn::Sub": f"{name}-${{Serving}}"}}},
            **{  # as good as functions, or as layers, to whose names SAM adds a hash
                f"{weights_id(plan, 0, 0)}{'0' * 10}" if plan == driver_runs else function_id(plan, 0, 0): LOG
                for plan in plans
            },
        },
        "Conditions": {"Current": {"Fn::Equals": [{"Ref": "Serving"}, "current"]}},
        "Outputs": {
            "FunctionPrefix": {"Value": name},
            "Store": {"Value": "s3://bucket/serfer"},
            "Plans": {"Value": ",".join(plans)},
            "Serving": {"Value": chosen},
            "Days": {"Value": {"Ref": "Days"}},
            **({"Generations": {"Value": generations}} if generations else {}),
            **({"Weights": {"Value": weights}} if weights else {}),
            **({"DriverRuns": {"Value": driver_runs}} if driver_runs else {}),
        },
    }
    values = {"Serving": serving, **parameters}
    given = {
        "StackName": name,
        "TemplateBody": json.dumps(template),
        "Parameters": [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()],
        "Tags": [{"Key": "serfer:stack", "Value": name}],
    }
    there = {one["StackName"] for one in formation.describe_stacks()["Stacks"]}
    if name in there:
        formation.update_stack(**given)
    else:
        formation.create_stack(**given)
    event = "stack_update_complete" if name in there else "stack_create_complete"
    formation.get_waiter(event).wait(StackName=name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})
