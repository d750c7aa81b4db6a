"""Forms that go to disk as they arrive: the same parts however the body is cut into pieces."""

import asyncio
import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from serfer.api.http.body import ApiLimits
from serfer.api.http.problems import Problem
from serfer.api.http.streamed_form import receive_form

MOST = 4000
FILES = {"network": MOST, "labels": 20}
CONTENT_TYPE = "multipart/form-data; boundary=edge"
LIMITS = ApiLimits(max_body_bytes=MOST, body_timeout_s=60.0)


def part(name, data, filename=None):
    named = f'; filename="{filename}"' if filename is not None else ""
    return f'--edge\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + data + b"\r\n"


def received(body, sizes=(), content_type=CONTENT_TYPE, limits=LIMITS):
    """Read a form that arrives in pieces of these sizes, and then all at once."""
    pieces = []
    for size in sizes:
        pieces.append(body[:size])
        body = body[size:]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in [*pieces, body]]
    if limits is LIMITS:
        messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        if not messages:
            await asyncio.sleep(60.0)
        return messages.pop(0)

    request = Request({"type": "http", "headers": [(b"content-type", content_type.encode())], "state": {}}, receive)
    with tempfile.TemporaryDirectory() as place:
        form = asyncio.run(receive_form(request, Path(place), FILES, limits))
        return form.values, {name: (file.filename, file.path.read_bytes()) for name, file in form.files.items()}, form


@given(
    data=st.binary(max_size=300).map(lambda data: data.replace(b"--edge", b"-edge-")),
    text=st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=20),
    sizes=st.lists(st.integers(1, 40), max_size=40),
)
def test_a_form_is_the_same_however_it_is_cut(data, text, sizes):
    body = part("network", data, "n.onnx") + part("name", text.encode()) + b"--edge--\r\n"
    values, files, form = received(body, sizes)
    assert (values, files) == ({"name": text}, {"network": ("n.onnx", data)})
    assert form.files["network"].sha256 == hashlib.sha256(data).hexdigest()


@given(cut=st.integers(0, 100))
def test_a_form_that_is_cut_short_is_refused(cut):
    body = part("network", b"weights", "n.onnx") + b"--edge--"
    with pytest.raises(Problem) as refused:
        received(body[: min(cut, len(body) - 1)])
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (part("network", bytes(MOST), "n"), 413),
        (part("labels", bytes(21), "n"), 413),
        (part("name", bytes(1001)), 422),
        (part("name", b"a") + part("name", b"b"), 422),
        (part("network", b"a", "n") + part("network", b"b", "n"), 422),
        (part("../network", b"a", "n"), 422),
        (part("config", b"a", "n"), 422),
        (b"--edge\r\nX: y\r\n\r\na\r\n--edge--", 400),
        (b"--edgeless", 400),
        (b"no form at all", 400),
    ],
)
def test_what_a_form_may_not_be_is_refused(body, status):
    with pytest.raises(Problem) as refused:
        received(body + b"--edge--")
    assert refused.value.status == status


@pytest.mark.parametrize("content_type", ["application/json", "", "image/png"])
def test_other_types_are_refused(content_type):
    with pytest.raises(Problem) as refused:
        received(b"", content_type=content_type)
    assert refused.value.status == 415


def test_a_body_that_comes_too_slowly_is_refused():
    with pytest.raises(Problem) as refused:
        received(part("network", b"a", "n"), limits=ApiLimits(max_body_bytes=MOST, body_timeout_s=0.05))
    assert refused.value.status == 408
