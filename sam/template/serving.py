"""What drivers have by the plan that they serve: its values, and all that running it themselves takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serfer.core.plan import Artefact, Plan
from serfer.sam.options import digest12, weights_id
from serfer.sam.template.fragments import Part
from serfer.sam.template.policies import allow
from serfer.sam.weights import URL, uploaded_id

_API_METHODS = ("ApiRootMethod", "ApiProxyMethod")
_HEALTH_METHODS = ("ApiHealthzMethod", "ApiReadyzMethod")
_NOTHING = {"Ref": "AWS::NoValue"}


def served(values: Sequence[Any]) -> Any:  # noqa: ANN401 - intrinsics
    """Return the value of the plan that is served, out of one for each plan; the first is the previous one too."""
    return {"Fn::If": ["ServesPrevious", values[-1], values[0]]}


def api_variables(*, health: bool) -> dict[str, Any]:
    """Return the variables of the REST API's parts: its deployment's name, which changes with its methods."""
    methods = (*_API_METHODS, *(_HEALTH_METHODS if health else ()))
    return {"api_deployment": f"Api{'Health' if health else ''}Deployment", "api_methods": list(methods)}


def run_in_driver(
    plans: Sequence[Plan], memories: Mapping[str, int], resources: Part, environment: Mapping[str, Any]
) -> Part:
    """Let the driver function run plans itself, those whose digests, of twelve digits, `memories` has.

    Changes its memory, layers and order among `resources`; returns the variables that it gets in place of those in
    `environment`, and what its role may do besides.
    """
    digests = [digest12(plan) for plan in plans]
    own = [digest in memories for digest in digests]
    driver = resources["DriverFunction"]
    properties, usual = driver["Properties"], driver["Properties"]["MemorySize"]
    properties["MemorySize"] = _either([memories.get(digest, usual) for digest in digests])
    properties["Layers"] = [
        *properties["Layers"],
        _either([{"Ref": "RunnerLayer"} if runs else _NOTHING for runs in own]),
        _either(
            [{"Ref": weights_id(digest, 0, 0)} if runs else _NOTHING for digest, runs in zip(digests, own, strict=True)]
        ),
    ]
    fetched = _fetched(plan for plan, runs in zip(plans, own, strict=True) if runs)
    variables = {
        "SERFER_WORKERS": _either(["inprocess" if runs else "aws" for runs in own]),
        "SERFER_STORE": _either(["memory://" if runs else environment["SERFER_STORE"] for runs in own]),
    }
    statements = []
    if fetched:
        variables["SERFER_WEIGHTS"] = {"Fn::Sub": URL}
        driver["DependsOn"] = sorted({*map(uploaded_id, fetched)})  # it is not there before its weights are
        statements = [
            allow("Weights", "s3:GetObject", {"Fn::Sub": "${WeightsBucket.Arn}/weights/*"}),
            allow("WeightsMissing", "s3:ListBucket", {"Fn::GetAtt": ["WeightsBucket", "Arn"]}),
        ]
    return {"DriverEnvironment": variables, "Statements": {"DriverRole": statements}}


def _either(values: Sequence[Any]) -> Any:  # noqa: ANN401 - intrinsics
    """Return the value of the plan that is served, plainly where all have the same one."""
    return values[0] if all(value == values[0] for value in values) else served(values)


def _fetched(plans: Iterable[Plan]) -> list[Artefact]:
    return [artefact for plan in plans for artefact in plan.fetched(0, 0)]
