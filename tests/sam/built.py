"""What `sam build` made, run as AWS would: a template resolved, and its functions in the local Lambda service."""

import json
import os
import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import yaml
from botocore.config import Config

from serfer.core.costs.aws import shipped_aws
from serfer.core.sigv4 import Access
from serfer.local.lambda_.function import ACCOUNT, REGION, FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.pipeline.event_loop import LoopThread
from serfer.sam.template.intrinsics import Scope

SAM = Path(__file__).parents[2] / ".venv" / "sam" / "bin" / "sam"
STACK = "demo"
ACCESS = Access("x", "x")


def run_sam(*arguments, cwd):
    return _run([SAM, *arguments], cwd)


_EACH = """
import json, os, sys
from click.testing import CliRunner
from samcli.cli.main import cli
for place in sys.argv[1:]:
    os.chdir(place)
    done = CliRunner().invoke(cli, ["validate", "--lint"])
    print(json.dumps([done.exit_code, done.output]))
"""


def sam_lint(places, cwd):
    """Return (exit code, output) of `sam validate --lint` in each directory.

    One process runs them all: its start, and reading what AWS's resources are, take as long as the rest.
    """
    done = _run([SAM.with_name("python"), "-c", _EACH, *places], cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def _run(command, cwd):
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HTTPS_PROXY": "http://127.0.0.1:9",  # where nobody listens
        "SAM_CLI_TELEMETRY": "0",
    }
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)


@contextmanager
def lambda_service(functions, cache, runtimes, **more):
    """Run functions in a local Lambda service that has no environment yet."""
    given = {"facts": shipped_aws().functions, "access": ACCESS, **more}
    service = LambdaService(functions, runtime=runtime_directory(cache / "runtime"), runtimes=runtimes, **given)
    loop = LoopThread()
    loop.wait(service.start())
    try:
        yield service
    finally:
        loop.wait(service.stop())
        loop.close()


def client_of(service):
    """Return a client of Lambda for a local service, which asks once."""
    return boto3.client(
        "lambda",
        endpoint_url=service.url,
        region_name=REGION,
        aws_access_key_id=service.access.key_id,
        aws_secret_access_key=service.access.secret,
        config=Config(read_timeout=120, retries={"total_max_attempts": 1}),
    )


@dataclass(frozen=True)
class Stack:
    """A built template, with what AWS would call its resources."""

    directory: Path  # .aws-sam/build
    bucket: str = "bucket"
    serving: str = "current"

    @property
    def template(self):
        return yaml.safe_load((self.directory / "template.yaml").read_text(encoding="utf-8"))

    @property
    def resources(self):
        """Every resource's properties by logical id, intrinsics resolved to local names."""
        template = self.template
        names = {name: f"{STACK}-{name}" for name in template["Resources"]}
        names |= {
            "AWS::StackName": STACK,
            "AWS::AccountId": ACCOUNT,
            "AWS::Partition": "aws",
            "StoreBucket": self.bucket,
            "WeightsBucket": self.bucket,
        }
        for name, resource in template["Resources"].items():
            if resource["Type"].endswith("StateMachine"):
                names[name] = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{name}"
        scope = Scope(template, {**names, "Serving": self.serving}, REGION)
        known = {**names, "AWS::Region": REGION}
        every = {name: scope.resolved(each["Properties"]) for name, each in template["Resources"].items()}
        for name, given in every.items():  # what a function goes by here is its name
            if "FunctionName" in given and "Handler" in given:
                known[f"{name}.Arn"] = _named(given["FunctionName"], known)
        return {name: _named(given, known) for name, given in every.items()}

    def functions(self, store_access, python):
        """Return the functions as the local Lambda service takes them, with the template's own environments.

        `store_access` are variables that stand for what a role gives.
        """
        resources, named = self.resources, {}
        for name, resource in self.template["Resources"].items():
            if resource["Type"] == "AWS::Serverless::Function":
                named[name] = self._function(name, resources, store_access, python)
        return named

    def _function(self, name, resources, store_access, python):
        given = resources[name]
        layers = [layer.removeprefix(f"{STACK}-") for layer in given.get("Layers", ())]
        return FunctionConfig(
            name=given["FunctionName"],
            directory=self.directory / given["CodeUri"],
            handler=given["Handler"],
            memory_mb=given["MemorySize"],
            timeout_s=given["Timeout"],
            environment={**given.get("Environment", {}).get("Variables", {}), **store_access},
            layers=tuple(self.directory / resources[layer]["ContentUri"] for layer in layers),
            python=python,
        )

    def state_machine(self, digest):
        """Return the definition of a plan's state machine, its substitutions put in."""
        given = self.resources[f"Machine{digest}"]
        text = (self.directory / given["DefinitionUri"]).resolve().read_text(encoding="utf-8")
        for name, value in given["DefinitionSubstitutions"].items():
            text = text.replace(f"${{{name}}}", value)
        assert "${" not in text
        return json.loads(text)


def _named(value, names):
    """Resolve what is left: names in texts, and ARNs of functions, which go by their names here."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Fn::Sub"} and isinstance(value["Fn::Sub"], str):
        return re.sub(r"\$\{([^}]+)\}", lambda match: str(names.get(match[1], match[0])), value["Fn::Sub"])
    if set(value) == {"Fn::GetAtt"} and value["Fn::GetAtt"][1] == "Arn":
        return names.get(".".join(value["Fn::GetAtt"]), value["Fn::GetAtt"][0])
    return {key: _named(item, names) for key, item in value.items()}
