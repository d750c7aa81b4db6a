"""The manifest of a result: the zarr.json of its group, written last.

    {"zarr_format": 3, "node_type": "group",
     "attributes": {"serfer": {"format", "id", "created", "expires", "plan", "model", "crc32c"}},
     "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": {"0": ..., "1": ...}}}

The metadata of its arrays, output by output, are in it as zarr-python consolidates them, so that one read says all. It
names no keys: these follow from the owner and the id that the reader asked for, so that no manifest leads to what is
not its own.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from serfer.core.crc32c import crc32c
from serfer.core.dataclass_codec import Bounds, structure, unstructure
from serfer.core.errors import ResultDamagedError, SerferError
from serfer.core.keys import ResultPlace
from serfer.core.plan import OUTPUT_TYPES, Plan
from serfer.core.plan.answers import answer_arrays
from serfer.core.zarr import METADATA, MOST_METADATA_BYTES, ChunkedArray, read_array

FORMAT = 2  # 1 had parts of its own format
MOST_IMAGES, MOST_OUTPUTS, MOST_CHUNKS = 1024, 256, 1024
_MOST_TEXT = 500
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Attributes:
    format: Annotated[int, Bounds(FORMAT, FORMAT)]
    id: str
    created: Annotated[float, Bounds(0)]
    expires: Annotated[float, Bounds(0)]
    plan: str
    model: str


@dataclass(frozen=True, slots=True)
class ResultManifest:
    """A whole result: `created` and `expires` are seconds since the epoch, `plan` is the digest of its plan."""

    id: str
    owner: str
    created: float
    expires: float
    plan: str
    model: str
    outputs: tuple[ChunkedArray, ...]

    @property
    def place(self) -> ResultPlace:
        return ResultPlace(self.owner, self.id)

    @property
    def images(self) -> int:
        return self.outputs[0].images

    @property
    def nbytes(self) -> int:
        return sum(output.nbytes for output in self.outputs)

    def output(self, name: str) -> ChunkedArray | None:
        return next((output for output in self.outputs if output.name == name), None)

    def documents(self) -> dict[str, dict[str, Any]]:
        metadata = {str(number): output.metadata() for number, output in enumerate(self.outputs)}
        attributes = _Attributes(FORMAT, self.id, self.created, self.expires, self.plan, self.model)
        group = {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": {"serfer": unstructure(attributes)},
            "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata},
        }
        return {METADATA: group} | {f"{number}/{METADATA}": document for number, document in metadata.items()}


def planned_manifest(plan: Plan, place: ResultPlace, images: int, created: float) -> ResultManifest:
    outputs = answer_arrays(plan, images)
    manifest = ResultManifest(place.id, place.owner, created, created + place.ttl, plan.digest, plan.model, outputs)
    _check(manifest)
    return manifest


def encode_manifest(manifest: ResultManifest) -> bytes:
    _check(manifest)
    group = manifest.documents()[METADATA]
    group["attributes"]["serfer"]["crc32c"] = crc32c(_canonical(group))
    encoded = _canonical(group)
    _check_length(len(encoded))
    return encoded


def decode_manifest(encoded: bytes | memoryview, place: ResultPlace) -> ResultManifest:
    _check_length(len(encoded))
    try:
        group = json.loads(bytes(encoded))
        said = group["attributes"]["serfer"]
        crc = said.pop("crc32c")
        documents = group["consolidated_metadata"]["metadata"]
        arrays = [documents[str(number)] for number in range(min(len(documents), MOST_OUTPUTS + 1))]
        canonical = _canonical(group)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise _unsound("is not that of a group of arrays") from None
    if crc != crc32c(canonical):
        raise _unsound("was altered, so run it again")
    attributes = structure(_Attributes, said, "the result's manifest", error=ResultDamagedError)
    manifest = ResultManifest(
        attributes.id,
        place.owner,
        attributes.created,
        attributes.expires,
        attributes.plan,
        attributes.model,
        tuple(read_array(array, "the result's manifest") for array in arrays),
    )
    if manifest.id != place.id:
        raise _unsound("is that of another result")
    _check(manifest)
    return manifest


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def _check_length(length: int) -> None:
    if length > MOST_METADATA_BYTES:
        raise _unsound(f"has {length:,} bytes, and {MOST_METADATA_BYTES:,} are the most")


def _check(manifest: ResultManifest) -> None:
    try:
        _ = manifest.place
    except SerferError as error:
        raise _unsound(f"has no place: {error}") from None
    if not (0 < manifest.expires - manifest.created < math.inf):
        raise _unsound("expires before it was created")
    if not _DIGEST.fullmatch(manifest.plan) or len(manifest.model) > _MOST_TEXT:
        raise _unsound("has no plan's digest")
    names = {output.name for output in manifest.outputs}
    if not 0 < len(manifest.outputs) <= MOST_OUTPUTS or len(names) != len(manifest.outputs):
        raise _unsound("has no outputs, too many, or two of one name")
    if not all(output.images == manifest.images <= MOST_IMAGES for output in manifest.outputs):
        raise _unsound("has too many images")
    for output in manifest.outputs:
        if output.sized_by and output.sized_by not in names:
            raise _unsound(f"lacks the sizes of output {output.name!r:.80}")
        if output.dtype not in OUTPUT_TYPES:
            raise _unsound(f"has an unknown type of output {output.name!r:.80}")
        if output.rows.count * output.cols.count > MOST_CHUNKS:
            raise _unsound(f"has too many chunks of output {output.name!r:.80}")


def _unsound(fault: str) -> ResultDamagedError:
    return ResultDamagedError(f"the result's manifest {fault}")
