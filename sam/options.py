"""The choices of a deployment, which of them go together, and what its resources are called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from serfer.core.dataclass_codec import LATER
from serfer.core.errors import UsageError
from serfer.core.plan import CONTAINER, Plan
from serfer.core.variants import NAME
from serfer.pipeline.warm import MOST_AT_ONCE

STACK = "${AWS::StackName}"
LIVE = "live"
"""The alias of a function's published version, where SnapStart or provisioned concurrency wants one."""
MOST_BESIDE = 8
"""Plans of other variants that are deployed beside one: a role's policy names each of their functions."""
MOST_LETTERS = 30
"""Of a deployment's name: a cache's may have 40, and stacks add -prod to it."""
_NAME = re.compile(rf"[a-z](?:[a-z0-9]|-(?!-)){{0,{MOST_LETTERS - 1}}}(?<!-)")
RECORD = "deployment.json"
TEMPLATE = "template.yaml"
DRIVERS = ("function", "fleet")
STORES = ("s3", "s3express", "valkey", "redis", "valkey-public")
_PUBLIC = "valkey-public"
"""Valkey 9 with an endpoint on the internet: no network, login by IAM alone; never chosen but by name."""
ENGINES = ("push", "poll", "stepfunctions", "stepfunctions-express")
RUNTIMES = ("python3.13", "python3.12", "python3.14")
DRIVER_RUNS = ("auto", "always", "never")
"""Whether a driver function runs a plan of one function itself (sam/cost/driver_runs.py)."""
ARCHITECTURES = ("x86_64", "arm64")
HANDLER = "serfer.lambdas.bootstrap.handler"
"""The handler of the stages' functions."""
_BASE_IMAGE = "public.ecr.aws/lambda/python"  # AWS's own, for both architectures
_IMAGE = re.compile(r"[a-z0-9][\w.:/@-]{0,254}")
DAY_S = 86_400
_MOST_RESULTS_DAYS = 30
_REGISTRY = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9][A-Za-z0-9._-]*){0,8}/?")
_MOST_APPLICATIONS = 20
_GPU_TYPE = re.compile(r"g\d[a-z]*\.[a-z0-9]{1,12}")
_MOST_GPUS = 100


def digest12(plan: Plan) -> str:
    return plan.digest[:12]


def function_id(digest: str, stage: int, number: int) -> str:
    return f"Function{digest}S{stage}N{number}"


def weights_id(digest: str, stage: int, number: int) -> str:
    return f"Weights{digest}S{stage}N{number}"


def machine_id(digest: str) -> str:
    return f"Machine{digest}"


def images_of(plan: Plan) -> list[str]:
    """Return the tags of the functions of a plan that are container images: PLAN-STAGE-PART."""
    parts = [part for part in plan.functions if plan.stages[part[0]].weights_in == CONTAINER]
    return [f"{digest12(plan)}-{stage}-{number}" for stage, number in parts]


def pool_name(digest: str, *, spot: bool = False) -> str:
    """Return what the Auto Scaling group of a plan's instances, or spot instances, is called, as Fn::Sub takes it."""
    return f"{STACK}-gpu-{digest}-spot" if spot else f"{STACK}-gpu-{digest}"


def check_name(name: str) -> None:
    """Raise UsageError for a name that AWS would refuse for a stack, or for anything that is named after one.

    A deployment's stacks are its name with an environment: NAME-prod.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r} cannot be a deployment's: at most {MOST_LETTERS} lower-case letters, digits and single "
            "hyphens, a letter first and no hyphen last"
        )


def default_name(model: str) -> str:
    """Return a stack's name for a model: serfer-MODEL, with what AWS would refuse left out."""
    words = "".join(letter if letter.isascii() and letter.isalnum() else " " for letter in model.lower()).split()
    return "-".join(["serfer", *words])[:MOST_LETTERS].rstrip("-")


def is_build(directory: Path) -> bool:
    return (directory / RECORD).is_file()


@dataclass(frozen=True)
class GpuPool:
    """Instances that take load which lasts: of one type, at most `most`, of which `warm` are kept prepared, stopped.

    With `spot` there is a second group, of at most `most` spot instances.
    """

    instance_type: str
    most: int
    warm: int = 0
    spot: bool = field(default=False, metadata=LATER)

    def check(self) -> None:
        if not _GPU_TYPE.fullmatch(self.instance_type):
            raise UsageError(
                f"--gpu-instance-type is one of EC2's G types such as g6.xlarge, not {self.instance_type!r}"
            )
        if not 1 <= self.most <= _MOST_GPUS:
            raise UsageError(f"gpu_max is 1 to {_MOST_GPUS} instances, not {self.most}")
        if not 0 <= self.warm <= self.most:
            raise UsageError(f"gpu_warm_pool is 0 to {self.most}, which is gpu_max, not {self.warm}")


@dataclass(frozen=True)
class Pings:
    """A schedule that has the driver function keep environments warm for so many queries at once."""

    minutes: int
    queries: int = 1

    def check(self) -> None:
        if self.minutes < 1:
            raise UsageError(f"ping_every is 1 minute or more, not {self.minutes}")
        if not 1 <= self.queries <= MOST_AT_ONCE:
            raise UsageError(f"ping_queries is 1 to {MOST_AT_ONCE} queries at once, not {self.queries}")


@dataclass(frozen=True)
class Serves:
    """The applications that drivers answer for, beside the plan as a model, of a registry in S3."""

    registry: str
    names: tuple[str, ...]

    @property
    def place(self) -> str:
        return self.registry.removeprefix("s3://").rstrip("/")

    def check(self) -> None:
        if not _REGISTRY.fullmatch(self.registry):
            raise UsageError(f"--registry is s3://BUCKET/PREFIX for drivers in AWS, not {self.registry!r:.100}")
        if not 1 <= len(self.names) <= _MOST_APPLICATIONS or len(set(self.names)) < len(self.names):
            raise UsageError(
                f"--app names 1 to {_MOST_APPLICATIONS} different applications, which drivers may read; "
                f"{len(self.names)} are given"
            )
        if wrong := [name for name in self.names if not NAME.fullmatch(name)]:
            raise UsageError(f"--app {wrong[0]!r:.100} is not the name of an application")


@dataclass(frozen=True)
class Options:
    """A deployment's choices, as docs/how-to/deploy.md has them; `name` is the stack's without its environment.

    `provisioned_concurrency` is in queries at once, `reserved_concurrency` in environments of each function.
    """

    name: str
    region: str = "us-east-1"
    drivers: str = "function"
    store: str = "s3"
    engine: str = "push"
    runtime: str = "python3.13"
    architecture: str = "x86_64"
    snapstart: bool = False
    reserved_concurrency: int | None = None
    zone: str | None = None
    gpu: GpuPool | None = None
    base_image: str | None = field(default=None, metadata=LATER)
    driver_runs: str = "auto"
    pings: Pings | None = field(default=None, metadata=LATER)
    provisioned_concurrency: int | None = field(default=None, metadata=LATER)
    results_days: int | None = field(default=None, metadata=LATER)
    applications: Serves | None = field(default=None, metadata=LATER)

    @property
    def by_alias(self) -> bool:
        return self.snapstart or self.provisioned_concurrency is not None

    @property
    def kept_ready(self) -> int:
        """For how many queries at once environments are kept, by pings or as provisioned."""
        return max(self.provisioned_concurrency or 0, self.pings.queries if self.pings else 0)

    @property
    def builds_on(self) -> str:
        return self.base_image or f"{_BASE_IMAGE}:{self.runtime.removeprefix('python')}"

    @property
    def runs_gangs(self) -> bool:
        """Whether a plan's gangs run as such: the engine starts them, and the store has inboxes."""
        return self.engine == "push" and self.in_cache

    @property
    def chooses_plans(self) -> bool:
        """Whether drivers choose between a plan and its cold plan; functions that are provisioned are never cold."""
        return self.engine == "push" and self.provisioned_concurrency is None

    @property
    def in_vpc(self) -> bool:
        return self.drivers == "fleet" or self.cache_in_vpc

    @property
    def in_cache(self) -> bool:
        return self.cache_in_vpc or self.store == _PUBLIC

    @property
    def cache_in_vpc(self) -> bool:
        return self.store in {"valkey", "redis"}

    @property
    def by_state_machine(self) -> bool:
        return self.engine.startswith("stepfunctions")

    def check(self) -> None:
        check_name(self.name)
        for option, value, known in (
            ("--drivers", self.drivers, DRIVERS),
            ("--store", self.store, STORES),
            ("--engine", self.engine, ENGINES),
            ("--runtime", self.runtime, RUNTIMES),
            ("--architecture", self.architecture, ARCHITECTURES),
            ("driver_runs", self.driver_runs, DRIVER_RUNS),
        ):
            if value not in known:
                raise UsageError(f"{option} is {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
        if self.base_image is not None and not _IMAGE.fullmatch(self.base_image):
            raise UsageError(f"base_image is an image such as {_BASE_IMAGE}:3.13, not {self.base_image!r:.80}")
        if self.results_days is not None and not 1 <= self.results_days <= _MOST_RESULTS_DAYS:
            raise UsageError(f"results_days is 1 to {_MOST_RESULTS_DAYS}, or 0 for none, not {self.results_days}")
        for name, count in (
            ("reserved_concurrency", self.reserved_concurrency),
            ("provisioned_concurrency", self.provisioned_concurrency),
        ):
            if count is not None and count < 1:
                raise UsageError(f"{name} is 1 or more, not {count}")
        for chosen in (self.gpu, self.pings, self.applications):
            if chosen is not None:
                chosen.check()
        self._check_together()

    def _check_together(self) -> None:
        if (self.store == "s3express") != (self.zone is not None):
            raise UsageError("zone, an availability zone's id such as use1-az4, goes with --store s3express")
        if self.store == _PUBLIC and self.drivers == "fleet":
            raise UsageError(f"--store {_PUBLIC} goes with --drivers function: a fleet has no way to the internet")
        if self.results_days is not None and self.by_state_machine:
            raise UsageError(f"results_days goes with --engine push or poll: {self.engine} keeps no results")
        if self.applications is not None and self.by_state_machine:
            raise UsageError(f"--app goes with --engine push or poll: {self.engine} runs one plan")
        if self.applications is not None and self.driver_runs == "always":
            raise UsageError("driver_runs=always: with --app a driver invokes the functions of several variants")
        if self.gpu is not None and self.drivers != "fleet":
            raise UsageError("--gpu-instance-type goes with --drivers fleet: a driver function ends with its request")
        if self.gpu is not None and self.architecture != "x86_64":
            raise UsageError("--gpu-instance-type goes with --architecture x86_64, which instances and drivers share")
        if self.pings is not None and self.drivers != "function":
            raise UsageError("ping_every goes with --drivers function; for a fleet there is serfer deploy warm --stack")
        if self.provisioned_concurrency is not None and self.snapstart:
            raise UsageError("provisioned_concurrency does not go with --snapstart: a function has one of them")

    def check_plan(self, plan: Plan) -> None:
        for number, stage in enumerate(plan.stages):
            if self.gpu is not None and stage.weights_in == CONTAINER:
                raise UsageError(
                    f"--gpu-instance-type: stage-{number} has its weights in a container image, which instances do "
                    "not read: split with --set weights=fetched, or package without a pool"
                )
