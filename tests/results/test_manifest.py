import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import InputError, ResultDamagedError
from serfer.core.geometry import Rect, Span
from serfer.core.keys import MOST_RESULT_TTL_S, ResultPlace
from serfer.core.plan import Shape
from serfer.core.structure import unstructure
from serfer.results.manifest import MOST_BYTES, decode_manifest, encode_manifest, planned_manifest
from storage import open_store
from tests.core.plans import small_plan
from tests.results.stored import NOW, PLACE, dense, stored


@pytest.fixture(scope="module")
def manifest():
    return stored(open_store("memory://"), {"map": dense(), "mask": dense(1, 5, 5, "uint8")})[0]


def damaged(manifest, path, value):
    tree = unstructure(manifest)
    *parents, last = path
    inner = tree
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return json.dumps(tree).encode()


def test_a_manifest_survives_its_encoding(manifest):
    assert decode_manifest(encode_manifest(manifest), PLACE) == manifest


def test_a_plans_manifest_describes_what_its_last_stage_writes():
    plan = small_plan()
    manifest = planned_manifest(plan, PLACE, 3, NOW)
    [output] = manifest.outputs
    assert (output.name, output.dims, output.dtype) == ("logits", (10,), "float32")
    assert [part.rect for part in output.parts] == [Rect.whole(1, 10)]
    assert (manifest.images, manifest.tiles, manifest.plan) == (3, 1, plan.digest)
    assert manifest.expires == NOW + PLACE.ttl


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("id",), "f" * 32),
        (("owner",), "ab" * 16),
        (("images",), 0),
        (("images",), 1 << 40),
        (("tiles",), 3),
        (("tiles",), 1 << 30),
        (("created",), -1),
        (("expires",), 0),
        (("expires",), 1e400),
        (("plan",), "../../etc"),
        (("outputs",), []),
        (("outputs", 1, "name"), "map"),
        (("outputs", 0, "dtype"), "O"),
        (("outputs", 0, "dims"), [3, 11]),
        (("outputs", 0, "dims"), [1] * 9 + [231]),
        (("outputs", 0, "dims"), [-3, -11, 7]),
        (("outputs", 0, "shape", "height"), 1 << 40),
        (("outputs", 0, "shape", "flat"), True),
        (("outputs", 0, "parts"), []),
        (("outputs", 0, "parts", 0, "tile"), 4),
        (("outputs", 0, "parts", 0, "start"), -1),
        (("outputs", 0, "parts", 0, "rect", "rows", "start"), -1),
        (("outputs", 0, "parts", 0, "rect", "rows", "stop"), 7),
        (("outputs", 0, "parts", 0, "rect", "rows", "stop"), 5),
        (("outputs", 0, "parts", 0, "key"), "serfer:other"),
    ],
)
def test_a_hostile_manifest_is_refused(manifest, path, value):
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(damaged(manifest, path, value), PLACE)


@pytest.mark.parametrize("encoded", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b" " * (MOST_BYTES + 1)])
def test_what_is_not_a_manifest_is_refused(encoded):
    with pytest.raises(ResultDamagedError, match="manifest"):
        decode_manifest(encoded, PLACE)


def test_parts_by_the_thousand_take_no_time(manifest):
    shape = Shape(1, 2048, 2048, flat=False)
    rows = [Rect(Span(n, 2048), Span(0, n + 1)) for n in range(1024)]
    [part, *_] = manifest.outputs[0].parts
    parts = tuple(replace(part, rect=rect) for rect in rows)
    output = replace(manifest.outputs[0], shape=shape, dims=(2048, 2048), parts=parts)
    with pytest.raises(ResultDamagedError, match="do not make"):
        decode_manifest(json.dumps(unstructure(replace(manifest, outputs=(output,)))).encode(), PLACE)


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
    assert read.place.manifest_key == PLACE.manifest_key


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), MOST_RESULT_TTL_S + 1])
def test_a_lifetime_is_bounded(ttl):
    with pytest.raises(InputError, match="lifetime"):
        ResultPlace("local", "0" * 32, ttl)
