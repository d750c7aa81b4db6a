"""Prices of a BUILD directory: what was packaged, and what would be if other choices were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sam.cost.bill import LOADS, Bill, Row, bill, compare, deployed
from sam.deployment import load_current_plan, load_deployment, load_template
from sam.options import TEMPLATE
from sam.template.template import make_template
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import InputError


def price_build(
    build: Path,
    facts: AwsFacts,
    *,
    burst: int,
    loads: Sequence[int] | None = None,
    cold_share: float | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Bill:
    """Price what BUILD holds, with its template's own parameters unless others are given.

    Raises InputError where BUILD is unusable, UsageError for loads and parameters that cannot be.
    """
    deployment, template = load_deployment(build), load_template(build)
    plan = load_current_plan(build, deployment)
    try:
        return bill(
            deployed(plan, deployment.options, facts, template),
            template,
            burst=burst,
            loads=loads or LOADS,
            cold_share=cold_share,
            packed_bytes=sum(deployment.bytes.values()),
            parameters=parameters,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A template is free in form, and is its owner's to alter; ours has a test that each of its resources is priced.
        raise InputError(
            f"{build / TEMPLATE} has something altered that cannot be priced ({error}): package again"
        ) from error


def compare_build(build: Path, facts: AwsFacts, loads: Sequence[int] | None = None) -> list[Row]:
    """Price BUILD's plan with every choice of drivers, store and engine, everything else as it was packaged."""
    deployment = load_deployment(build)
    plan = load_current_plan(build, deployment)
    return compare(plan, facts, deployment.options, lambda options: make_template(options, [plan]), loads or LOADS)
