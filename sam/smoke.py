"""Deploy a build, query it, compare its answers, and delete it again: `serfer deploy smoke build --max-usd 1`.

The stack is one of its own, NAME-smoke, so that no deployment that serves is touched, and it is deleted however the
run ends. Only function drivers answer from anywhere, by their REST API.
"""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from serfer.client.sync_client import Client
from serfer.core.costs.cost_model import HOURS_A_MONTH
from serfer.core.errors import KeyRefusedError, QueryError, UnavailableError, UsageError, WrongAnswerError
from serfer.core.plan import Plan
from serfer.core.retry import Backoff, RetryPolicy, retry
from serfer.sam.cost.bill import Bill, price_build
from serfer.sam.deployment import load_deployment, load_packaged_plan
from serfer.sam.quotas import run_sam
from serfer.sam.samconfig import StackSettings
from serfer.sam.stacks import find_stack
from serfer.sam.teardown import forget_uploads, tear_down
from serfer.settings import Settings

QUERIES = 10
"""Queries to the REST API."""
_KEPT_HOURS = 3
"""Hours of fixed costs in the estimate."""
_OPENING = RetryPolicy("api key", KeyRefusedError, Backoff(2.0, 2.0), attempts=80)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """The order: deploy BUILD's plan with an environment's settings, and spend `most_usd` at most."""

    build: Path
    settings: StackSettings
    most_usd: float


class OverBudgetError(QueryError):
    """The next step may take more than is left to spend."""


class Budget:
    """The dollars that were spent, by the price model, and whether there are enough left for a step."""

    def __init__(self, most_usd: float) -> None:
        self.most_usd = most_usd
        self.spent_usd = 0.0

    def allow(self, step: str, usd: float) -> None:
        left_usd = self.most_usd - self.spent_usd
        if usd > left_usd:
            raise OverBudgetError(
                f"{step}: estimated at ${usd:.4f}, and ${max(left_usd, 0.0):.4f} are left of --max-usd "
                f"{self.most_usd:g}: allow more"
            )

    def spend(self, usd: float) -> None:
        self.spent_usd += usd


@dataclass(frozen=True)
class Smoke:
    """A run that may begin: what it deploys, as which stack, and what that costs."""

    order: Order
    plan: Plan
    stack: str
    bill: Bill
    settings: Settings

    @property
    def region(self) -> str:
        return self.order.settings.region

    @property
    def estimated_usd(self) -> float:
        """Dollars of a whole run, rather too many: three hours of what costs without queries, and its queries."""
        idle_usd = self.bill.idle_usd * _KEPT_HOURS / HOURS_A_MONTH
        return idle_usd + self.bill.cold.usd + QUERIES * self.bill.warm.usd

    def check(self) -> None:
        if not self.order.most_usd > 0:
            raise UsageError(f"--max-usd is a number of dollars above 0, not {self.order.most_usd:g}")
        if self.estimated_usd > self.order.most_usd:
            raise UsageError(
                f"{self.stack} is estimated at ${self.estimated_usd:.4f}, more than --max-usd "
                f"{self.order.most_usd:g}: allow more, or package a smaller network"
            )


def prepare(order: Order, settings: Settings) -> Smoke:
    deployment = load_deployment(order.build)
    options = deployment.options
    if options.drivers != "function":
        raise UsageError(
            f"only function drivers answer from here: package with --drivers function, not {options.drivers}"
        )
    bill = price_build(order.build, settings.facts(), burst=1)
    return Smoke(order, load_packaged_plan(order.build, deployment.current), f"{options.name}-smoke", bill, settings)


def smoke(order: Order, settings: Settings, session: Any, say: Say) -> None:  # noqa: ANN401 - boto3 has no types here
    """Do it all, and leave nothing that bills."""
    run = prepare(order, settings)
    run.check()
    with deploy(run, session, say) as budget:
        ask(run, session, budget, say)


@contextmanager
def deploy(run: Smoke, session: Any, say: Say) -> Iterator[Budget]:  # noqa: ANN401 - same
    """Deploy the stack for the block, which spends of a budget, and delete it at its end."""
    _check_account(run, session)
    say(f"{run.stack} in {run.region}: estimated ${run.estimated_usd:.4f}, at most ${run.order.most_usd:g}")
    budget, started = Budget(run.order.most_usd), time.monotonic()
    with _gone_at_the_end(run, session, say):
        try:
            _deploy(run)
            yield budget
        finally:
            hours = (time.monotonic() - started) / 3600
            usd = budget.spent_usd + run.bill.idle_usd * hours / HOURS_A_MONTH
            say(f"spent: ${usd:.4f}, estimated by the price model of serfer cost")


def _check_account(run: Smoke, session: Any) -> None:  # noqa: ANN401 - same
    if session.get_credentials() is None:
        raise UnavailableError("no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret")
    if find_stack(session.client("cloudformation"), run.stack) is None:
        return
    raise UsageError(
        f"there is a stack {run.stack} in {run.region}: wait for the run that made it, or delete it by "
        f"serfer deploy destroy {run.order.build} --stack {run.stack}"
    )


@contextmanager
def _gone_at_the_end(run: Smoke, session: Any, say: Say) -> Iterator[None]:  # noqa: ANN401 - same
    """Delete the stack, however the block ends; a further Ctrl-C does not stop that."""
    try:
        yield
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if find_stack(session.client("cloudformation"), run.stack) is None:
                forget_uploads(run.stack, session, say)
            else:
                tear_down(run.stack, session, say)
            say(f"{run.stack} is gone, and nothing of it bills")
        except BaseException:
            say(f"{run.stack} may be there still: serfer deploy destroy {run.order.build} --stack {run.stack}")
            raise
        finally:
            signal.signal(signal.SIGINT, before)


def _deploy(run: Smoke) -> None:
    environment = run.order.settings.environment
    run_sam(run.order.build, "build", "--config-env", environment)
    own = ("--stack-name", run.stack, "--s3-prefix", run.stack, "--tags", f"serfer:stack={run.stack}")
    run_sam(run.order.build, "deploy", "--config-env", environment, *own)


def ask(run: Smoke, session: Any, budget: Budget, say: Say) -> None:  # noqa: ANN401 - same
    """Query the REST API with the stack's first key; raises WrongAnswerError for another plan or other answers."""
    if run.plan.preprocess is None:
        say("the plan does not say how an image becomes its input: the REST API is not queried")
        return
    budget.allow(f"{QUERIES} queries to the REST API", run.bill.cold.usd + QUERIES * run.bill.warm.usd)
    gateway = session.client("apigateway")
    [stack] = session.client("cloudformation").describe_stacks(StackName=run.stack)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    key = gateway.get_api_key(apiKey=outputs["ApiKeyId"], includeValue=True)["value"]
    answers, latencies = set(), []
    with Client(_reachable(outputs["Url"], gateway.meta.endpoint_url), api_key=key) as client:
        retry(client.models, _OPENING, time.sleep)
        for number in range(QUERIES):
            budget.spend(run.bill.warm.usd if number else run.bill.cold.usd)
            started = time.perf_counter()
            report = client.classify(_image(run.plan))
            latencies.append(time.perf_counter() - started)
            cold = run.bill.deployed.cold
            if report.plan not in {plan.digest for plan in (run.plan, cold) if plan}:
                raise WrongAnswerError(f"the plan {report.plan[:12]} answers, not {run.plan.digest[:12]}")
            answers.add(report.images[0].predictions[0].index)
    if len(answers) > 1:
        raise WrongAnswerError(f"one image is class {' and '.join(map(str, sorted(answers)))} in {QUERIES} queries")
    warm = sorted(latencies[1:])
    say(f"REST API: first query {latencies[0] * 1000:.0f} ms, then {warm[0] * 1000:.0f} to {warm[-1] * 1000:.0f} ms")


def _reachable(url: str, endpoint: str) -> str:
    """Return where a REST API answers: at its URL, or below an emulator's endpoint (AWS_ENDPOINT_URL) by its id."""
    if (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return url
    parts = urlsplit(url)
    return f"{endpoint}/_aws/execute-api/{(parts.hostname or '').partition('.')[0]}{parts.path}"


def _image(plan: Plan) -> bytes:
    image = Image.radial_gradient("L").resize((plan.input.width, plan.input.height)).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
