"""A deployment in AWS, as found: what its stack says of itself, and the functions of a plan in it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serfer.core.errors import PlanError, UnavailableError, UsageError
from serfer.core.plan import Plan
from serfer.settings import Settings, settings_with
from serfer.storage import schemes

if TYPE_CHECKING:
    from botocore.credentials import Credentials

    from serfer.drivers.lambda_http import LambdaInvoker

_STACK = re.compile(
    r"[A-Za-z][A-Za-z0-9-]{0,127}|arn:[a-z-]+:cloudformation:[a-z0-9-]+:\d{12}:stack/[A-Za-z0-9/-]{1,200}"
)
_PLANS = re.compile(r"[0-9a-f]{12}(,[0-9a-f]{12})*")
_NEEDED = ("Store", "FunctionPrefix", "Plans", "Serving")
_CACHES = {"redis", "rediss", "redis+cluster", "rediss+cluster"}
_WAIT_S = 10


@dataclass(frozen=True)
class Deployment:
    """A stack of `serfer deploy package`, by its outputs; `plans` and `serving` are digests' first twelve digits.

    `engine` is what its own drivers take queries through, `url` where they answer; they run `driver_runs` themselves.
    """

    stack: str
    store: str
    prefix: str
    alias: str
    plans: tuple[str, ...]
    serving: str
    engine: str
    state_machine: str
    url: str
    driver_runs: tuple[str, ...] = ()

    def check(self, plan: Plan, driver: str) -> None:
        """Refuse a plan that is not deployed (PlanError), and an engine that is not there for it (UsageError)."""
        wanted = plan.digest[:12]
        if wanted not in self.plans:
            served = " and ".join(self.plans)
            raise PlanError(
                f"--stack {self.stack} serves the plan {served}, this one is {wanted}: deploy it, or pass --plan with "
                "the directory of the one that is deployed"
            )
        if wanted in self.driver_runs:
            ways = f"ask {self.url} (serfer.Client), or package with --set driver_runs=never"
            raise UsageError(f"--stack {self.stack}: its driver function runs the plan itself: {ways}")
        if not driver.startswith("stepfunctions"):
            return
        if not self.state_machine or self.engine != driver:
            raise UsageError(
                f"engine={driver}: the stack {self.stack} was packaged for {self.engine or 'another engine'}: "
                f"use that, or push or poll, or package it with --engine {driver}"
            )
        if wanted != self.serving:
            raise UsageError(
                f"engine={driver}: the stack {self.stack} has a state machine for the plan {self.serving} alone, "
                f"this one is {wanted}: use --set engine=push"
            )

    def settings(self, settings: Settings) -> Settings:
        changes = {
            "function_prefix": self.prefix,
            "function_alias": self.alias,
            "state_machine": self.state_machine or settings.state_machine,
        }
        return settings_with(settings, changes, f"--stack {self.stack}")

    @property
    def advice(self) -> str:
        if not schemes(self.store) & _CACHES:
            return f"it is the store of the stack {self.stack}"
        asking = f"ask its service, {self.url}, instead (serfer.Client)" if self.url else "ask its service instead"
        return (
            f"the stack {self.stack} has a cache that only what runs in its network or has its role reaches: {asking}, "
            "or give --store a URL that leads there"
        )


def find_deployment(stack: str) -> Deployment:
    """Ask CloudFormation, in boto3's region and with its credentials, about a stack of `serfer deploy package`.

    Raises UsageError for what is not such a stack, UnavailableError where there is none or it may not be asked about.
    """
    if not _STACK.fullmatch(stack):
        raise UsageError(f"--stack {stack!r:.80} is not a stack's name")
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - only stacks need clients of botocore's
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - same

    client, _ = _connect("cloudformation", f"--stack {stack}")
    try:
        [described] = client.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        raise _refused(stack, client.meta.region_name, error.response.get("Error", {})) from error
    except BotoCoreError as error:
        raise UnavailableError(f"--stack {stack}: CloudFormation cannot be reached: {error}") from error
    except ResponseParserError as error:
        raise UnavailableError(
            f"--stack {stack}: what answers is not CloudFormation: correct AWS_ENDPOINT_URL"
        ) from error
    finally:
        client.close()
    outputs = {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", ())}
    return _read(stack, outputs, described.get("StackStatus", "unknown"))


def _refused(stack: str, region: str, error: Mapping[str, Any]) -> UnavailableError:
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    if code == "ValidationError" and "does not exist" in message:
        return UnavailableError(
            f"--stack {stack}: there is no such stack in {region}: deploy it, or set AWS_PROFILE or AWS_DEFAULT_REGION"
        )
    if code.startswith("AccessDenied"):
        return UnavailableError(
            f"--stack {stack}: these credentials may not ask about it: allow cloudformation:DescribeStacks, or set "
            "AWS_PROFILE"
        )
    return UnavailableError(f"--stack {stack}: CloudFormation refuses, {code}: {message}")


def _read(stack: str, outputs: Mapping[str, str], status: str) -> Deployment:
    if not all(outputs.get(name) for name in _NEEDED) or not _PLANS.fullmatch(outputs["Plans"]):
        raise UsageError(
            f"--stack {stack} is not a stack of serfer deploy package, or not up yet: its status is {status}, and it "
            f"lacks the outputs {', '.join(_NEEDED[:-1])} and {_NEEDED[-1]}"
        )
    return Deployment(
        stack,
        store=outputs["Store"],
        prefix=outputs["FunctionPrefix"],
        alias=outputs.get("Alias", ""),
        plans=tuple(outputs["Plans"].split(",")),
        serving=outputs["Serving"],
        engine=outputs.get("Engine", ""),
        state_machine=outputs.get("StateMachine", ""),
        url=outputs.get("Url", ""),
        driver_runs=tuple(filter(None, outputs.get("DriverRuns", "").split(","))),
    )


def deployed_names(plan: Plan, settings: Settings, cold: Plan | None = None) -> dict[str, str]:
    """Return what functions are called in AWS, by their own names, as far as that is something else.

    They are those of a plan and of its cold plan, if there is one.
    """
    prefix, alias = settings.function_prefix, settings.function_alias
    if not prefix and not alias:
        return {}
    qualifier = f":{alias}" if alias else ""
    return {
        plan_.function(*part): (plan_.deployed(prefix, *part) if prefix else plan_.function(*part)) + qualifier
        for plan_ in (plan, cold)
        if plan_
        for part in plan_.functions
    }


async def deployed_functions(plan: Plan, settings: Settings, cold: Plan | None = None) -> LambdaInvoker:
    """Return an invoker of a plan's deployed functions, and of its cold plan's, for the running event loop.

    Raises UnavailableError where boto3 finds no region or credentials.
    """
    from serfer.drivers.lambda_http import LambdaInvoker  # noqa: PLC0415 - it imports botocore and aiohttp

    client, credentials = await asyncio.to_thread(_connect, "lambda", "--workers aws")
    meta = client.meta
    client.close()
    return LambdaInvoker(meta.endpoint_url, meta.region_name, credentials, deployed_names(plan, settings, cold))


def _connect(service: str, option: str) -> tuple[Any, Credentials]:
    """Return a client of botocore's and the credentials that it found; errors name `option`."""
    from botocore.config import Config  # noqa: PLC0415 - only what is deployed needs botocore's sessions
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - same
    from botocore.session import get_session  # noqa: PLC0415 - same

    config = Config(
        connect_timeout=_WAIT_S, read_timeout=_WAIT_S, retries={"mode": "standard", "total_max_attempts": 3}
    )
    session = get_session()
    try:
        client = session.create_client(service, config=config)
        credentials = session.get_credentials()
    except ValueError as error:  # of an invalid address
        raise UsageError(f"{option}: {error}: correct AWS_ENDPOINT_URL_{service.upper()}") from error
    except BotoCoreError as error:
        reason = str(error).rstrip(".")
        raise UnavailableError(f"{option}: {reason}: set AWS_DEFAULT_REGION, or AWS_PROFILE to one there is") from error
    if credentials is None:
        raise UnavailableError(f"{option}: no credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret")
    return client, credentials
