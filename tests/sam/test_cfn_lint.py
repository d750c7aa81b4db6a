"""What cfn-lint says of templates with all that a deployment can have besides drivers, store and engine.

Each pair of those three is linted with a real network (test_networks.py); a few choices stand together here, since a
template takes seconds of a processor.
"""

import json

import pytest

from serfer.core.plan import sealed
from serfer.sam import weights
from serfer.sam.options import Pings, digest12
from serfer.sam.template.template import make_template
from tests.drivers.plans import wide_plan
from tests.sam.offered import (
    FETCHED,
    POOL,
    POOLED,
    SERVES,
    SPOT_POOL,
    findings,
    lint,
    options,
    placed,
    plans,
    template,
    translated,
    with_cold_plan,
    with_variants,
)

pytestmark = [pytest.mark.deploy, pytest.mark.usefixtures("region")]


def fetched_in_pieces():
    chosen = options("fleet", "redis", "poll", results_days=7, reserved_concurrency=9, architecture="arm64")
    return make_template(chosen, [placed(plan, *FETCHED) for plan in plans()])


def run_by_drivers():
    one, several = placed(sealed(wide_plan((1,))), *FETCHED), sealed(wide_plan((2, 1)))
    return make_template(options(), [one, several], driver_runs={digest12(one): 3538})


LINTED = {
    "applications": lambda: template("function", "s3", "push", applications=SERVES, results_days=2, pings=Pings(4, 2)),
    "applications in a network": lambda: template("function", "valkey", "push", applications=SERVES),
    "variants": lambda: with_variants("fleet", "s3", "push"),
    "results in a network": lambda: template("function", "valkey", "push", results_days=7, provisioned_concurrency=2),
    "fetched in a network": lambda: template("function", "valkey", "stepfunctions", places=FETCHED),
    "fetched in pieces": fetched_in_pieces,
    "pings of a state machine": lambda: template("function", "redis", "stepfunctions-express", pings=Pings(4, 2)),
    "snapshots": lambda: template(
        engine="stepfunctions", snapstart=True, architecture="arm64", reserved_concurrency=7, places=FETCHED
    ),
    "images": lambda: template("function", "valkey", "push", places=("image", "fetched", "zip", "image")),
    "images from snapshots": lambda: template(places=("image",), snapstart=True),
    "cold plan": lambda: with_cold_plan("function", "s3", "push", places=FETCHED)[2],
    "pool": lambda: template(*POOLED, gpu=POOL),
    "spot pool": lambda: template(*POOLED, gpu=SPOT_POOL, places=FETCHED, applications=SERVES),
    "run by drivers": run_by_drivers,
}


@pytest.mark.parametrize("name", LINTED)
def test_cfn_lint_finds_nothing(name, monkeypatch):
    if name == "fetched in pieces":  # the others are made once for all tests
        monkeypatch.setattr(weights, "PIECE_BYTES", 4)
    assert lint(LINTED[name]()) == []


def test_cfn_lint_findings_are_reported():
    """The checks above would not notice if nothing were checked."""
    wrong = template()
    wrong["Resources"]["DriverFunction"]["Properties"]["Runtime"] = "python2.5"
    wrong["Resources"]["StoreBucket"]["Properties"]["Bucket"] = "a property that there is not"
    found = " ".join(findings(json.dumps(translated(wrong))))
    assert "'python2.5' is not one of" in found
    assert "'Bucket' was unexpected" in found
