"""What /openapi.json says is true: schemathesis makes requests of it, and looks whether answers are as described."""

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from serfer.api.auth.keys import Scope
from tests.api.test_who_may import OPEN, RULES
from tests.support.served import served

CHECKS = (  # 500 is described nowhere; 504 is, and a deadline of 1 ms earns it
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
)


@pytest.fixture(scope="module")
def schema(small_plan):
    with served({"small": small_plan}) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.fixture(scope="module")
def operations(schema):
    return [result.ok() for result in schema.get_all_operations()]


def test_every_route_is_described(operations):
    named = {rule.replace(":path", "") for rule, may in RULES.items() if may not in {OPEN, Scope.OPERATE}}
    assert {operation.label for operation in operations} >= named | {"GET /healthz", "GET /readyz"}


@pytest.mark.parametrize("examples", [4, pytest.param(50, marks=pytest.mark.weekly)])
def test_every_answer_is_as_described(operations, examples):
    for operation in operations:

        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def check(case):
            case.call_and_validate(checks=CHECKS)

        check()


def test_a_path_or_method_that_does_not_exist_names_what_was_asked_and_where_the_routes_are(lasting_http):
    lost = lasting_http.get("/v1/clasify")
    assert (lost.status_code, lost.json()["detail"]) == (
        404,
        "there is nothing at /v1/clasify: /docs lists what there is",
    )
    wrong = lasting_http.put("/v1/classify")
    assert (wrong.status_code, wrong.json()["detail"]) == (405, "/v1/classify does not take PUT: see /docs")
    assert "POST" in wrong.headers["allow"]
    assert len(lasting_http.get(f"/{'x' * 5000}").json()["detail"]) < 300
