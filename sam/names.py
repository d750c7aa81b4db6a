"""What things are called in a deployment: logical ids of a template, and names in AWS.

A plan is called by the first twelve hex digits of its digest, so that two plans live side by side in one stack.
"""

from __future__ import annotations

import re

from serfer.core.errors import UsageError
from serfer.core.plan import Plan

STACK = "${AWS::StackName}"
LIVE = "live"
"""The alias of a function's published version, where SnapStart wants one."""
MOST_LETTERS = 30
"""Of a deployment's name: a cache's may have 40, and stacks add -prod to it."""
_NAME = re.compile(rf"[a-z](?:[a-z0-9]|-(?!-)){{0,{MOST_LETTERS - 1}}}(?<!-)")


def digest12(plan: Plan) -> str:
    """Return what a plan is called in a deployment."""
    return plan.digest[:12]


def function_id(digest: str, stage: int, number: int) -> str:
    """Return the logical id of a stage's function."""
    return f"Function{digest}S{stage}N{number}"


def weights_id(digest: str, stage: int, number: int) -> str:
    """Return the logical id of the layer with a function's weights."""
    return f"Weights{digest}S{stage}N{number}"


def machine_id(digest: str) -> str:
    """Return the logical id of a plan's state machine."""
    return f"Machine{digest}"


def pool_name(digest: str) -> str:
    """Return what the Auto Scaling group of a plan's instances is called, as Fn::Sub takes it."""
    return f"{STACK}-gpu-{digest}"


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
