"""The resources that bring the weights which functions fetch into the deployment's bucket."""

from __future__ import annotations

from typing import Any

from serfer import __version__
from serfer.core.plan import Artefact
from serfer.sam.options import Options
from serfer.sam.template.fragments import Part
from serfer.sam.weights import PREFIX, RESOURCE_TYPE, Piece, pieces

_MEMORY_MB = 1769  # one vCPU, and with it all of an environment's bandwidth
_TIMEOUT_S = 900
_STUCK_S = _TIMEOUT_S + 300  # Lambda invokes one that dies without a response twice more, within three minutes


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
        "MemorySize": _MEMORY_MB,
        "Timeout": _TIMEOUT_S,
        "Role": {"Fn::GetAtt": ["UploaderRole", "Arn"]},
        "LoggingConfig": {"LogFormat": "JSON", "LogGroup": {"Ref": "UploadersLog"}},
        "Tags": {"serfer:stack": {"Ref": "AWS::StackName"}, "serfer:version": __version__},
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
