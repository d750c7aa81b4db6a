"""Whether a plan directory's cold plan is used, and why not."""

from __future__ import annotations

from pathlib import Path

from serfer.core.costs.aws import LambdaFacts
from serfer.core.plan import Plan
from serfer.pipeline.plan_choice import terms
from serfer.plan_directory import COLD_DIRECTORY, check_artefacts, load_cold_plan
from serfer.settings import Settings
from serfer.wiring.deployed import Deployment
from serfer.wiring.options import Choices


def find_cold_plan(path: Path, plan: Plan, choices: Choices, settings: Settings) -> tuple[Plan | None, str]:
    """Return the cold plan of a plan directory, if queries can use it, and else why they cannot, empty without one.

    Raises PlanError for one that is not whole, or not of the same network.
    """
    if (choices.cold_plan or settings.cold_plan) == "never":
        return None, _unused("it was turned off") if (path / COLD_DIRECTORY).exists() else ""
    cold = load_cold_plan(path, plan)
    if cold is None:
        return None, ""
    if choices.workers == "inprocess":
        return None, _unused("workers in process have no cold starts")
    if choices.driver != "push":
        return None, _unused(f"only the push driver chooses between plans, not {choices.driver}")
    facts = settings.facts().functions
    concurrency, least = concurrency_of(choices, settings, facts), terms(plan, cold, 0, facts).least
    if concurrency < least:
        return None, _unused(f"it needs {least} invocations at once, the concurrency is {concurrency}")
    if choices.workers == "local":
        check_artefacts(cold, path / COLD_DIRECTORY)
    return cold, ""


def deployed_cold_plan(cold: Plan, deployment: Deployment) -> tuple[Plan | None, str]:
    """Return the cold plan, if the deployment has its functions, and else that it has not."""
    if cold.digest[:12] in deployment.plans:
        return cold, ""
    return None, _unused(f"the stack {deployment.stack} has not the functions of {cold.digest[:12]}")


def concurrency_of(choices: Choices, settings: Settings, facts: LambdaFacts) -> int:
    """Return how many invocations a driver may have in flight."""
    return facts.concurrency if choices.workers == "aws" else settings.local_concurrency


def _unused(why: str) -> str:
    return f"The cold plan is not used: {why}."
