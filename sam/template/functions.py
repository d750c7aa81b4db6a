"""The resources of one plan, a generation: a function for each part of a stage, its weights, a state machine.

Beside them those that bring the weights which functions fetch into the deployment's bucket.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from serfer import __version__
from serfer.core.plan import CONTAINER, Artefact, Plan
from serfer.core.plan.gang_times import function_timeout_s
from serfer.drivers.stepfunctions.asl import EXPRESS_LIMIT_S, compile_plan
from serfer.sam.options import HANDLER, LIVE, STACK, Options, digest12, function_id, machine_id, weights_id
from serfer.sam.template.fragments import Part
from serfer.sam.template.policies import allow
from serfer.sam.weights import PREFIX, RESOURCE_TYPE, URL, Piece, pieces, uploaded_id

_STANDARD_LIMIT_S = 3600
_EVENT_S = 60  # Lambda takes no less; a driver that polls has given up by then
_LONG_ARN = "arn:aws-us-gov:lambda:us-gov-west-1:123456789012:function:" + "x" * 64 + ":live"
_STACK = {"Ref": "AWS::StackName"}
_UPLOADER_MB = 1769  # one vCPU, and with it all of an environment's bandwidth
_UPLOADER_S = 900
_STUCK_S = _UPLOADER_S + 300  # Lambda invokes one that dies without a response twice more, within three minutes


def generation(plan: Plan, options: Options, environment: Mapping[str, Any], timeout_s: int) -> Part:
    """Return the resources of a plan and what they may do; `environment` are the variables of its functions."""
    digest = digest12(plan)
    resources: dict[str, Any] = {}
    for stage, number in plan.functions:
        in_image = plan.stages[stage].weights_in == CONTAINER
        if not in_image:
            resources[weights_id(digest, stage, number)] = _weights(plan, stage, number, options)
        resources[function_id(digest, stage, number)] = {
            "Type": "AWS::Serverless::Function",
            "Metadata": _docker(digest, stage, number) if in_image else {"BuildMethod": "makefile"},
            "DeletionPolicy": "Delete",  # of versions too: SAM would retain each, and SnapStart bill its snapshot
            "Properties": _function(plan, stage, number, options, environment, timeout_s),
        }
        if fetched := plan.fetched(stage, number):  # no function is there before its weights are
            resources[function_id(digest, stage, number)] |= {"DependsOn": sorted({*map(uploaded_id, fetched)})}
    targets = [_target(function_id(digest, *part), options) for part in plan.functions]
    statements = {"DriverRole": [allow(f"Stages{digest}", "lambda:InvokeFunction", targets)]}
    if options.by_state_machine:
        resources[machine_id(digest)] = _machine(plan, options)
        statements["MachineRole"] = [allow(f"Stages{digest}", "lambda:InvokeFunction", targets)]
        statements["DriverRole"] += _running(digest, options)
    return {"Resources": resources, "Statements": statements}


def state_machine(plan: Plan, options: Options, timeout_s: int = 60) -> dict[str, Any]:
    """Return the definition of a plan's state machine, whose functions' names are the template's substitutions.

    Raises PlanError where it is too large for Step Functions with the ARNs that will stand there.
    """
    digest = digest12(plan)
    express = options.engine == "stepfunctions-express"
    compiled = functools.partial(
        compile_plan,
        plan,
        express=express,
        task_timeout_s=timeout_s,
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


def _function(
    plan: Plan, stage: int, number: int, options: Options, environment: Mapping[str, Any], timeout_s: int
) -> Part:
    digest = digest12(plan)
    properties: Part = {
        "FunctionName": {"Fn::Sub": plan.deployed(STACK, stage, number)},
        "Description": f"{_stages(plan, stage)} of {_plain(plan.model)}, part {number} of the weights",
        **_code(plan, stage, number, options),
        "Architectures": [options.architecture],
        "MemorySize": plan.stages[stage].memory_mb,
        "Timeout": function_timeout_s(plan, stage, timeout_s),
        "Role": {"Fn::GetAtt": ["WorkerRole", "Arn"]},
        "LoggingConfig": {"LogFormat": "JSON", "LogGroup": {"Ref": "WorkersLog"}, "SystemLogLevel": "WARN"},
        # A driver that polls tries failed tasks again itself: Lambda would do so minutes later.
        "EventInvokeConfig": {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": _EVENT_S},
        "Environment": {"Variables": {**environment, "POWERTOOLS_LOG_LEVEL": "INFO"}},
        "Tags": {"serfer:stack": _STACK, "serfer:plan": digest, "serfer:version": __version__},
    }
    if options.reserved_concurrency is not None:
        properties["ReservedConcurrentExecutions"] = options.reserved_concurrency
    if options.store in {"valkey", "redis"}:
        properties["VpcConfig"] = vpc("WorkersGroup")
    if plan.fetched(stage, number):
        properties["Environment"]["Variables"]["SERFER_WEIGHTS"] = {"Fn::Sub": URL}
    if options.by_alias:
        properties |= {"AutoPublishAlias": LIVE, "AutoPublishAliasAllProperties": True}
    if options.snapstart:
        properties["SnapStart"] = {"ApplyOn": "PublishedVersions"}
    return properties


def _code(plan: Plan, stage: int, number: int, options: Options) -> Part:
    """Return what a function runs: an image, which has all in itself, or a package and layers."""
    if plan.stages[stage].weights_in == CONTAINER:
        return {"PackageType": "Image", "ImageConfig": {"Command": [HANDLER]}}
    digest = digest12(plan)
    return {
        "CodeUri": f"plans/{digest}/functions/{stage}-{number}",
        "Handler": HANDLER,
        "Runtime": options.runtime,
        "Layers": [{"Ref": "WorkerLayer"}, {"Ref": weights_id(digest, stage, number)}],
    }


def _docker(digest: str, stage: int, number: int) -> Part:
    return {
        "DockerContext": f"plans/{digest}/images/{stage}-{number}",
        "Dockerfile": "Dockerfile",
        "DockerTag": f"{digest}-{stage}-{number}",
    }


def vpc(group: str) -> Part:
    return {
        "SecurityGroupIds": [{"Ref": group}],
        "SubnetIds": [{"Ref": "PrivateSubnetA"}, {"Ref": "PrivateSubnetB"}],
    }


def _weights(plan: Plan, stage: int, number: int, options: Options) -> Part:
    digest = digest12(plan)
    return {
        "Type": "AWS::Serverless::LayerVersion",
        "Metadata": {"BuildMethod": "makefile", "BuildArchitecture": options.architecture},
        "Properties": {
            "LayerName": {"Fn::Sub": f"{STACK}-{digest}-{stage}-{number}"},
            "Description": f"Weights of {_stages(plan, stage).lower()}, part {number}",
            "ContentUri": f"plans/{digest}/weights/{stage}-{number}",
            "CompatibleRuntimes": [options.runtime],
            "CompatibleArchitectures": [options.architecture],
            "RetentionPolicy": "Delete",
        },
    }


def _machine(plan: Plan, options: Options) -> Part:
    digest, express = digest12(plan), options.engine == "stepfunctions-express"
    ids = [function_id(digest, *part) for part in plan.functions]
    return {
        "Type": "AWS::Serverless::StateMachine",
        "Properties": {
            # Another type is another machine, made while the first one is there: so it wants another name.
            "Name": {"Fn::Sub": f"{STACK}-{digest}{'-express' if express else ''}"},
            "Type": "EXPRESS" if express else "STANDARD",
            "DefinitionUri": f"plans/{digest}/statemachine.asl.json",
            "DefinitionSubstitutions": {name: _target(name, options) for name in ids},
            "Role": {"Fn::GetAtt": ["MachineRole", "Arn"]},
            "Tags": {"serfer:stack": _STACK, "serfer:plan": digest, "serfer:version": __version__},
        },
    }


def _running(digest: str, options: Options) -> list[Part]:
    """Return what a driver does with a plan's state machine (drivers/stepfunctions/client.py)."""
    machine = {"Ref": machine_id(digest)}
    if options.engine == "stepfunctions-express":
        return [allow(f"Machine{digest}", "states:StartSyncExecution", machine)]
    executions = "arn:${AWS::Partition}:states:${AWS::Region}:${AWS::AccountId}:execution:"
    mine = {"Fn::Sub": f"{executions}${{{machine_id(digest)}.Name}}:*"}
    return [
        allow(f"Machine{digest}", "states:StartExecution", machine),
        allow(f"Executions{digest}", ["states:DescribeExecution", "states:StopExecution"], mine),
    ]


def _target(function: str, options: Options) -> Part:
    """Return what is invoked: the function, or its alias."""
    return {"Ref": f"{function}.Alias"} if options.by_alias else {"Fn::GetAtt": [function, "Arn"]}


def _stages(plan: Plan, stage: int) -> str:
    gang = plan.gang_of(stage)
    return f"Stages {gang.start} to {gang.stop - 1}" if gang else f"Stage {stage}"


def _plain(text: str) -> str:
    return "".join(char if char.isascii() and (char.isalnum() or char in " -._") else "-" for char in text)[:100]


def upload(weights: Artefact, options: Options) -> Part:
    """Return the resources of the pieces of one object: a function for each, and what CloudFormation has it do."""
    cut = pieces(weights)
    resources: dict[str, Any] = {}
    for piece in cut:
        resources[piece.function_id] = {
            "Type": "AWS::Serverless::Function",
            "Metadata": {"BuildMethod": "makefile"},
            "Properties": _uploader(piece, options),
        }
        resources[piece.object_id] = {"Type": RESOURCE_TYPE, "Properties": _uploaded(piece, cut)}
    return {"Resources": resources}


def _uploader(piece: Piece, options: Options) -> Part:
    return {
        "FunctionName": {"Fn::Sub": piece.function_name},
        "Description": f"Writes piece {piece.number} of {piece.count} of weights into the bucket, while deploying",
        "CodeUri": f"weights/{piece.name}",
        "Handler": "uploader.handler",
        "Runtime": options.runtime,
        "Architectures": [options.architecture],
        "MemorySize": _UPLOADER_MB,
        "Timeout": _UPLOADER_S,
        "Role": {"Fn::GetAtt": ["UploaderRole", "Arn"]},
        "LoggingConfig": {"LogFormat": "JSON", "LogGroup": {"Ref": "UploadersLog"}},
        "Tags": {"serfer:stack": _STACK, "serfer:version": __version__},
    }


def _uploaded(piece: Piece, cut: list[Piece]) -> Part:
    """Return the properties of a piece's upload; those after the first continue its multipart upload."""
    properties: Part = {
        "ServiceToken": {"Fn::GetAtt": [piece.function_id, "Arn"]},
        "ServiceTimeout": _STUCK_S,
        "Bucket": {"Ref": "WeightsBucket"},
        "Key": f"{PREFIX}/{piece.sha256}",
        "Sha256": piece.sha256,
        "Bytes": piece.whole,
        "Piece": piece.number,
        "Pieces": piece.count,
    }
    if piece.number > 1:
        properties["UploadId"] = {"Fn::GetAtt": [cut[0].object_id, "UploadId"]}
    if piece.number == piece.count > 1:
        properties["Tags"] = [{"Fn::GetAtt": [each.object_id, "Tag"]} for each in cut[:-1]]
    return properties
