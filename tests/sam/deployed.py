"""Stacks as `serfer deploy apply` makes them on ministack, asked as users ask them."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.client.sync_client import Client
from serfer.local.lambda_.function import ACCOUNT, REGION
from serfer.plan_directory import load_plan
from serfer.settings import load_settings
from tests.sam.ministack import Ministack

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0  # several cold starts on a busy machine


@dataclass(frozen=True)
class Deployed:
    """A stack in an account, by the BUILD directory and the environment that it comes from."""

    account: Ministack
    build: Path
    name: str

    @property
    def stack(self):
        return f"{self.name}-dev"

    @property
    def variables(self):
        kept = {name: os.environ[name] for name in ("PATH", "SERFER_CACHE_DIR") if name in os.environ}
        home = {"HOME": str(self.build.parent), "SERFER_CACHE_DIR": str(load_settings().cache_dir)}
        return {**home, **kept, **self.account.environment}

    def tried(self, *command):
        """Run a command as a user of this account."""
        return subprocess.run(command, cwd=ROOT, env=self.variables, capture_output=True, text=True, check=False)

    def run(self, *command):
        done = self.tried(*command)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def target(self, command, *options):
        """The command line of a command of `serfer deploy` on this environment."""
        return (sys.executable, "-m", "serfer", "deploy", command, self.build, "dev", *options)

    def make(self, command, *options):
        self.run(*self.target(command, *options))

    def package(self, plan, *options):
        place = ("--out", self.build, "--name", self.name, "--store", "s3")
        self.run(sys.executable, "-m", "serfer", "deploy", "package", plan, *place, *options)

    def classify(self, plan, image, *options):
        """Ask the stack's functions; where they start, it takes as long as it takes, unlike by the REST API."""
        patience = ("--set", f"deadline_ms={int(1000 * PATIENCE_S)}")
        words = ("classify", image, "--plan", plan, "--stack", self.stack, "--json", *patience, *options)
        return json.loads(self.run(sys.executable, "-m", "serfer", *words))

    def client(self):
        return Client(self.url, api_key=self.key, timeout_s=PATIENCE_S)

    def ask(self, plan, image, expected):
        """Ask by the REST API, which has to answer so and by that plan; return the report."""
        with self.client() as client:
            report = client.classify(image)
        assert report.plan == load_plan(plan).digest
        found = [(each.label, pytest.approx(each.score, abs=1e-4)) for each in report.images[0].predictions]
        assert found == expected
        return report

    @property
    def outputs(self):
        (stack,) = self.account.client("cloudformation").describe_stacks(StackName=self.stack)["Stacks"]
        return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}

    @property
    def url(self):
        return self.account.api(self.outputs["Url"])

    @property
    def key(self):
        described = self.account.client("apigateway").get_api_key(apiKey=self.outputs["ApiKeyId"], includeValue=True)
        return described["value"]

    @property
    def functions(self):
        listed = self.account.client("lambda").list_functions()["Functions"]
        return {each["FunctionName"] for each in listed if each["FunctionName"].startswith(f"{self.stack}-")}

    def code(self, plan):
        """What a plan's functions run: their packages' digests, and their layers."""
        client, loaded = self.account.client("lambda"), load_plan(plan)
        described = [
            client.get_function_configuration(FunctionName=loaded.deployed(self.stack, *part))
            for part in loaded.functions
        ]
        return [(each["CodeSha256"], [layer["Arn"] for layer in each["Layers"]]) for each in described]

    def named(self, *plans):
        """The names that plans' functions have, with the driver's."""
        parts = ((load_plan(plan), part) for plan in plans for part in load_plan(plan).functions)
        return {f"{self.stack}-driver", *(plan.deployed(self.stack, *part) for plan, part in parts)}


@contextmanager
def deployed(account, root, name, plan, *options, package=None):
    """Deploy a plan for the block, packaged by the command unless otherwise; nothing may be left where it is destroyed.

    What lies in the directory `root` is large, and pytest keeps what three runs wrote: it goes as well.
    """
    stack = Deployed(account, root / "build", name)
    stack.package(plan, *options) if package is None else package(stack.build)
    stack.make("apply")
    yield stack
    stack.make("destroy")
    assert stack.functions == set()
    assert not [each for each in account.client("s3").list_buckets()["Buckets"] if name in each["Name"]]
    assert account.client("events").list_rules(NamePrefix=stack.stack)["Rules"] == []
    shutil.rmtree(root)


def called(*words):
    return _exit_code(app, ["deploy", *map(str, words)], _Interrupt())


def predictions(report):
    return [(each["label"], pytest.approx(each["score"], abs=1e-4)) for each in report["images"][0]["predictions"]]


def check_permissions(stack, roles):
    """Look whether every permission of a stack's roles is one on what belongs to the stack."""
    client = stack.account.client("iam")
    owned = (
        stack.outputs["Store"].rpartition("/")[0].replace("s3://", "arn:aws:s3:::"),
        f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{stack.stack}-",
        f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/serfer/{stack.stack}/",
        f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{stack.stack}-",
        f"arn:aws:states:{REGION}:{ACCOUNT}:execution:{stack.stack}-",
    )
    made = stack.account.client("cloudformation").describe_stack_resources(StackName=stack.stack)["StackResources"]
    granted = {
        each["LogicalResourceId"]: each["PhysicalResourceId"] for each in made if each["ResourceType"].endswith("Role")
    }
    assert set(granted) == roles
    for role in granted.values():
        (policy,) = client.list_role_policies(RoleName=role)["PolicyNames"]
        for statement in client.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]["Statement"]:
            named = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            assert all(arn.startswith(owned) and "${" not in arn for arn in named), (role, named)
