"""The weights that functions fetch: the objects of a deployment's bucket, and the pieces in which they get there.

`sam deploy` uploads packages alone, of 250 MB at most. So each object is cut into pieces of at most `PIECE_BYTES`, and
each piece is in the package of a function of its own (sam/build/uploader.py), which CloudFormation invokes to write it.
An object is named by its contents: plans that share weights share the object and the resources that write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serfer.core.plan import Artefact, Plan
from serfer.sam.options import STACK

PREFIX = "weights"
"""The directory of the bucket: the key of an object is this and the SHA-256 of its contents."""
RESOURCE_TYPE = "Custom::SerferWeights"
"""The type of the custom resources of pieces."""
URL = f"s3://${{WeightsBucket}}/{PREFIX}"
"""Where the objects are, as Fn::Sub takes it."""
PIECE_BYTES = 200_000_000
_DIGITS = 16  # of a digest, in names


@dataclass(frozen=True)
class Piece:
    """Piece `number` of `count`, from 1, of the weights with digest `sha256` and `whole` bytes.

    It has `bytes` from `offset`.
    """

    sha256: str
    whole: int
    number: int
    count: int
    offset: int
    bytes: int

    @property
    def name(self) -> str:
        return f"{self.sha256[:_DIGITS]}-{self.number}"

    @property
    def function_name(self) -> str:
        """The name of the function that uploads it, as Fn::Sub takes it."""
        return f"{STACK}-weights-{self.name}"

    @property
    def function_id(self) -> str:
        return f"Uploader{self.sha256[:_DIGITS]}P{self.number}"

    @property
    def variables(self) -> dict[str, Any]:
        """What stands in its resources (sam/template/parts/upload.yaml)."""
        return {
            "function": self.function_id,
            "object": self.object_id,
            "name": self.function_name,
            "directory": self.name,
            "content": self.sha256,
            "bytes": self.whole,
            "piece": self.number,
            "pieces": self.count,
        }

    @property
    def object_id(self) -> str:
        """The logical id of the custom resource of the piece in the bucket; the last piece's is that of the object."""
        return f"Uploaded{self.sha256[:_DIGITS]}P{self.number}"


def fetched(plans: Iterable[Plan]) -> list[Artefact]:
    every = (file for plan in plans for part in plan.functions for file in plan.fetched(*part))
    return [*{file.sha256: file for file in every}.values()]


def pieces(weights: Artefact) -> list[Piece]:
    count = max(1, -(-weights.bytes // PIECE_BYTES))
    return [
        Piece(
            sha256=weights.sha256,
            whole=weights.bytes,
            number=number,
            count=count,
            offset=(number - 1) * PIECE_BYTES,
            bytes=min(PIECE_BYTES, weights.bytes - (number - 1) * PIECE_BYTES),
        )
        for number in range(1, count + 1)
    ]


def uploaded_id(weights: Artefact) -> str:
    """Return the logical id of the custom resource that is made once weights are in the bucket, whole."""
    return pieces(weights)[-1].object_id
