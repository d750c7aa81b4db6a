"""The resources of one plan, a generation: a function for each part of a stage, its weights, a state machine.

Beside them those that bring the weights which functions fetch into the deployment's bucket.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from serfer import __version__
from serfer.core.plan import CONTAINER, Artefact, Plan
from serfer.core.plan.gang_times import function_timeout_s
from serfer.drivers.stepfunctions.asl import EXPRESS_LIMIT_S, compile_plan
from serfer.sam.options import HANDLER, LIVE, STACK, Options, digest12, function_id, machine_id, weights_id
from serfer.sam.template.fragments import Part, allow, load, merge
from serfer.sam.weights import URL, pieces, uploaded_id

_STANDARD_LIMIT_S = 3600
_TASK_LIMIT_S = 60
_LONG_ARN = "arn:aws-us-gov:lambda:us-gov-west-1:123456789012:function:" + "x" * 64 + ":live"


def generation(plan: Plan, options: Options, environment: Mapping[str, Any]) -> Part:
    """Return the resources of a plan and what they may do; `environment` are the variables of its functions."""
    digest = digest12(plan)
    parts = [part for place in plan.functions for part in _function(plan, *place, options, environment)]
    ids = [function_id(digest, *part) for part in plan.functions]
    targets = [{"Ref": f"{name}.Alias"} if options.by_alias else {"Fn::GetAtt": [name, "Arn"]} for name in ids]
    statements = {"DriverRole": [allow(f"Stages{digest}", "lambda:InvokeFunction", targets)]}
    if options.by_state_machine:
        known = {
            "machine": machine_id(digest),
            "digest": digest,
            "substitutions": dict(zip(ids, targets, strict=True)),
            "version": __version__,
        }
        statements["MachineRole"] = [allow(f"Stages{digest}", "lambda:InvokeFunction", targets)]
        kind = "express" if options.engine == "stepfunctions-express" else "standard"
        parts.append(load(f"plan-machine-{kind}", known))
    return merge([{"Statements": statements}, *parts])


def state_machine(plan: Plan, options: Options) -> dict[str, Any]:
    """Return the definition of a plan's state machine, whose functions' names are the template's substitutions."""
    digest = digest12(plan)
    express = options.engine == "stepfunctions-express"
    compiled = functools.partial(
        compile_plan,
        plan,
        express=express,
        task_timeout_s=_TASK_LIMIT_S,
        timeout_s=EXPRESS_LIMIT_S if express else _STANDARD_LIMIT_S,
    )
    stages = [range(len(stage.functions)) for stage in plan.stages]
    compiled([[_LONG_ARN for _ in parts] for parts in stages])
    return compiled(
        [
            [f"${{{function_id(digest, *plan.home(stage, part))}}}" for part in parts]
            for stage, parts in enumerate(stages)
        ]
    )


def weights_layer(plan: Plan, stage: int, number: int, options: Options) -> Part:
    known = {
        "layer": weights_id(digest12(plan), stage, number),
        "digest": digest12(plan),
        "part": f"{stage}-{number}",
        "description": f"Weights of {_stages(plan, stage).lower()}, part {number}",
        "architecture": options.architecture,
        "runtime": options.runtime,
    }
    return load("function-weights", known)


def _function(plan: Plan, stage: int, number: int, options: Options, environment: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the layer of a function's weights, unless it is an image, which has all in itself, and the function."""
    digest, part = digest12(plan), f"{stage}-{number}"
    function, layer = function_id(digest, stage, number), weights_id(digest, stage, number)
    stages = _stages(plan, stage)
    in_image = plan.stages[stage].weights_in == CONTAINER
    image = {
        "DockerContext": f"plans/{digest}/images/{part}",
        "Dockerfile": "Dockerfile",
        "DockerTag": f"{digest}-{part}",
    }
    known = {
        "function": function,
        "name": plan.deployed(STACK, stage, number),
        "part": part,
        "metadata": image if in_image else {"BuildMethod": "makefile"},
        "architecture": options.architecture,
        "runtime": options.runtime,
        "memory_mb": plan.stages[stage].memory_mb,
        "timeout_s": function_timeout_s(plan, stage, _TASK_LIMIT_S),
        "environment": {**environment, "POWERTOOLS_LOG_LEVEL": "INFO"},
        "digest": digest,
        "version": __version__,
    }
    if not in_image:
        yield weights_layer(plan, stage, number, options)
    made = load("function", {**known, "description": f"{stages} of {_plain(plan.model)}, part {number} of the weights"})
    resource = made["Resources"][function]
    properties: Part = resource["Properties"]
    if in_image:
        properties |= {"PackageType": "Image", "ImageConfig": {"Command": [HANDLER]}}
    else:
        properties |= {
            "CodeUri": f"plans/{digest}/functions/{part}",
            "Handler": HANDLER,
            "Runtime": options.runtime,
            "Layers": [{"Ref": "WorkerLayer"}, {"Ref": layer}],
        }
    if options.reserved_concurrency is not None:
        properties["ReservedConcurrentExecutions"] = options.reserved_concurrency
    if options.cache_in_vpc:
        properties["VpcConfig"] = vpc("WorkersGroup")
    if fetched := plan.fetched(stage, number):  # no function is there before its weights are
        properties["Environment"]["Variables"]["SERFER_WEIGHTS"] = {"Fn::Sub": URL}
        resource["DependsOn"] = sorted({*map(uploaded_id, fetched)})
    if options.by_alias:
        properties |= {"AutoPublishAlias": LIVE, "AutoPublishAliasAllProperties": True}
    if options.snapstart:
        properties["SnapStart"] = {"ApplyOn": "PublishedVersions"}
    yield made


def vpc(group: str) -> Part:
    return {"SecurityGroupIds": [{"Ref": group}], "SubnetIds": [{"Ref": "PrivateSubnetA"}, {"Ref": "PrivateSubnetB"}]}


def _stages(plan: Plan, stage: int) -> str:
    gang = plan.gang_of(stage)
    return f"Stages {gang.start} to {gang.stop - 1}" if gang else f"Stage {stage}"


def _plain(text: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in " -._") else "-" for char in text)[:100]


def upload(weights: Artefact, options: Options) -> Part:
    """Return the resources of the pieces of one object: a function for each, and what CloudFormation has it do.

    Those after the first continue its multipart upload, which the last one completes.
    """
    cut = pieces(weights)
    shared = {"architecture": options.architecture, "runtime": options.runtime, "version": __version__}
    whole = merge(load("upload", {**shared, **piece.variables}) for piece in cut)
    for piece in cut:
        properties = whole["Resources"][piece.object_id]["Properties"]
        if piece.number > 1:
            properties["UploadId"] = {"Fn::GetAtt": [cut[0].object_id, "UploadId"]}
        if piece.number == piece.count > 1:
            properties["Tags"] = [{"Fn::GetAtt": [before.object_id, "Tag"]} for before in cut[:-1]]
    return whole
