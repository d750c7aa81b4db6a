import copy
import json
from dataclasses import replace

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

from serfer.core.crc32c import crc32c
from serfer.core.errors import InputError, PlanError, ResultDamagedError
from serfer.core.geometry import Rect, Span
from serfer.core.keys import MOST_RESULT_TTL_S, ResultPlace
from serfer.core.plan.answers import answer_arrays
from serfer.core.zarr import MOST_METADATA_BYTES, Axis
from serfer.results.manifest import decode_manifest, encode_manifest, planned_manifest
from serfer.storage import open_store
from tests.core.plans import small_plan
from tests.results.stored import NOW, PLACE, dense, stored


@pytest.fixture(scope="module")
def manifest():
    return stored(open_store("memory://"), {"map": dense(), "mask": dense(1, 5, 5, "uint8")})[0]


def damaged(manifest, path, value):
    """Return a manifest with another value at a path, whose checksum matches."""
    group = json.loads(encode_manifest(manifest))
    inner = group
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    del group["attributes"]["serfer"]["crc32c"]
    canonical = json.dumps(group, sort_keys=True, separators=(",", ":")).encode()
    group["attributes"]["serfer"]["crc32c"] = crc32c(canonical)
    return json.dumps(group).encode()


def test_a_manifest_survives_its_encoding(manifest):
    assert decode_manifest(encode_manifest(manifest), PLACE) == manifest


def test_zarr_opens_the_group(manifest):
    store = MemoryStore({"zarr.json": cpu.Buffer.from_bytes(encode_manifest(manifest))})
    group = zarr.open_group(store, mode="r")
    assert group.attrs["serfer"]["plan"] == manifest.plan
    assert {name: array.attrs["serfer"]["output"] for name, array in group.arrays()} == {"0": "map", "1": "mask"}
    assert group["0"].shape == (2, 3, 11, 7)
    documents = {path: json.dumps(document).encode() for path, document in manifest.documents().items()}
    store = MemoryStore({path: cpu.Buffer.from_bytes(document) for path, document in documents.items()})
    assert zarr.open_array(store, path="1", mode="r").dtype == "uint8"


def test_a_plans_manifest_describes_what_its_last_stage_writes():
    plan = small_plan()
    manifest = planned_manifest(plan, PLACE, 3, NOW)
    [output] = manifest.outputs
    assert (output.name, output.dims, output.dtype) == ("logits", (10,), "float32")
    assert [*output.chunks] == [("c/0/0", Rect.whole(1, 10))]
    assert (manifest.images, manifest.plan) == (3, plan.digest)
    assert manifest.expires == NOW + PLACE.ttl


def test_tiles_that_are_not_a_grids_are_refused():
    plan = small_plan()
    last = plan.stages[-1]
    rect = Rect(Span(0, 1), Span(0, 6))
    tiles = (replace(last.tiles[0], outputs=(rect,)),)
    with pytest.raises(PlanError, match="not those of a grid"):
        answer_arrays(replace(plan, stages=(*plan.stages[:-1], replace(last, tiles=tiles))), 1)


SAID = ("attributes", "serfer")
FIRST = ("consolidated_metadata", "metadata", "0")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*SAID, "format"), 1),
        ((*SAID, "id"), "f" * 32),
        ((*SAID, "created"), -1),
        ((*SAID, "expires"), 0),
        ((*SAID, "expires"), 1e400),
        ((*SAID, "plan"), "../../etc"),
        ((*SAID, "key"), "serfer:other"),
        (("consolidated_metadata", "metadata"), {}),
        (("consolidated_metadata", "metadata"), []),
        (("consolidated_metadata",), 5),
        ((*FIRST, "attributes", "serfer", "output"), "mask"),
        ((*FIRST, "data_type"), "float64"),
        ((*FIRST, "data_type"), "O"),
        ((*FIRST, "shape"), [1 << 30, 3, 11, 7]),
        ((*FIRST, "shape"), [1, 3, 11, 7]),
        ((*FIRST, "attributes", "serfer", "dims"), [3, 11]),
        ((*FIRST, "attributes", "serfer", "edges"), [[0, 6, 12], [0, 4, 7]]),
    ],
)
def test_a_hostile_manifest_is_refused(manifest, path, value):
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(damaged(manifest, path, value), PLACE)


def test_a_manifest_of_too_much_is_refused(manifest):
    [first, _] = manifest.outputs
    rows = Axis((*range(1026),))
    for outputs in (
        (replace(first, images=1025),),
        (replace(first, rows=rows, dims=(3, 1025, 7)),),
        tuple(replace(first, name=str(number)) for number in range(257)),
        (first, first),
        (),
    ):
        with pytest.raises(ResultDamagedError, match="manifest"):
            encode_manifest(replace(manifest, outputs=outputs))


def test_a_manifest_without_its_checksum_is_refused(manifest):
    group = json.loads(encode_manifest(manifest))
    altered = copy.deepcopy(group)
    altered["attributes"]["serfer"]["expires"] += 1
    with pytest.raises(ResultDamagedError, match="was altered"):
        decode_manifest(json.dumps(altered).encode(), PLACE)
    del group["attributes"]["serfer"]["crc32c"]
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(json.dumps(group).encode(), PLACE)


@pytest.mark.parametrize("encoded", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b" " * (MOST_METADATA_BYTES + 1)])
def test_what_is_not_a_manifest_is_refused(encoded):
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(encoded, PLACE)


@given(st.data())
def test_any_damage_is_refused_or_harmless(data):
    manifest, _ = stored(open_store("memory://"), {"map": dense()})
    encoded = bytearray(encode_manifest(manifest))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_manifest(bytes(encoded), PLACE)
    except ResultDamagedError:
        return
    assert read == manifest


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), MOST_RESULT_TTL_S + 1])
def test_a_lifetime_is_bounded(ttl):
    with pytest.raises(InputError, match="lifetime"):
        ResultPlace("local", "0" * 32, ttl)
