import asyncio
import base64
import json
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from serfer.api.http.body import ApiLimits
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import ACCEPTED, ImageRequest, read_images

JPEG = b"\xff\xd8\xff rest of a picture"
PNG = b"\x89PNG\r\n\x1a\n rest"
LIMITS = ApiLimits(max_body_bytes=100_000, max_images=3, body_timeout_s=60.0)
NEVER = object()


def request(content_type, body=b"", *, headers=(), piece=1000, then=None):
    """A request whose body comes in pieces; after it (`then`) nothing, a disconnect, or silence."""
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    more = then is not None
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": more})
    coming = iter(messages)

    async def receive():
        message = next(coming, None)
        if message is None and then is NEVER:
            await asyncio.Event().wait()
        return message or {"type": "http.disconnect"}

    types = [] if content_type is None else [(b"content-type", content_type.encode("latin-1"))]
    return Request({"type": "http", "method": "POST", "headers": [*types, *headers]}, receive)


def images(*arguments, limits=LIMITS, **settings):
    return [(image.name, image.data) for image in asyncio.run(read_images(request(*arguments, **settings), limits))]


@contextmanager
def refused(status, *words):
    """Expect a problem of that status whose reason, one line that can be sent, has the words."""
    with pytest.raises(Problem) as caught:
        yield caught
    problem = caught.value
    assert problem.status == status, problem.detail
    assert "\n" not in problem.detail
    assert problem.detail.encode()
    for word in words:
        assert word in problem.detail


def form(*parts, boundary="b0undary", ending="--\r\n"):
    body = b""
    for name, filename, data in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\nContent-Type: image/png\r\n\r\n'
        body += head.encode() + data + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}{ending}".encode()


def listed(*entries):
    return "application/json", json.dumps({"images": list(entries)}).encode()


def b64(data):
    return base64.b64encode(data).decode()


def test_a_form_gives_its_images_in_order_under_their_names():
    assert images(*form(("image", "a.jpg", JPEG), ("image", None, PNG), ("image", "ü.png", PNG))) == [
        ("a.jpg", JPEG),
        ("image 1", PNG),
        ("ü.png", PNG),
    ]


@pytest.mark.parametrize("kind", [name for name in ACCEPTED if name.startswith("image/")])
def test_a_raw_image_is_one_image(kind):
    assert images(kind.upper() + "; q=1", JPEG) == [("image 0", JPEG)]


def test_json_gives_its_images_in_order():
    assert images(*listed({"data": b64(JPEG), "name": "cat"}, {"data": b64(PNG)})) == [("cat", JPEG), ("image 1", PNG)]


@pytest.mark.parametrize(
    "start", [JPEG, PNG, b"GIF87a", b"GIF89a", b"RIFF\x01\0\0\0WEBP", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]
)
def test_known_formats_are_let_through(start):
    assert images("image/png", start + b"x") == [("image 0", start + b"x")]


@pytest.mark.parametrize("data", [b"x", b"<svg/>", b"%PDF-1.7", b"RIFF\0\0\0\0WAVE", b"RIFF", b"PNG", b"\0" * 99])
def test_other_content_is_not_an_image_under_any_name(data):
    with refused(415, "image 0", "JPEG"):
        images("image/png", data)
    with refused(415, "holiday.jpg"):
        images(*form(("image", "holiday.jpg", data)))


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/octet-stream", "image/svg+xml", "image/*", "é"])
def test_other_media_types_are_refused_with_the_accepted_ones(kind):
    with refused(415, *ACCEPTED) as caught:
        images(kind, JPEG)
    assert caught.value.headers["Accept"] == ", ".join(ACCEPTED)


def test_two_types_are_refused():
    with refused(400, "more than once"):
        images("image/png", PNG, headers=[(b"content-type", b"application/json")])


@pytest.mark.parametrize("coding", [b"gzip", b"identity, br", b"x"])
def test_coded_bodies_are_refused(coding):
    with refused(415, "Content-Encoding"):
        images("image/png", PNG, headers=[(b"content-encoding", coding)])
    assert images("image/png", PNG, headers=[(b"content-encoding", b"Identity")])


@pytest.mark.hostile
@pytest.mark.parametrize("length", [b"100001", b"9" * 5000])
def test_a_large_body_is_refused_before_it_is_read(length):
    with refused(413, "100,000"):
        images("image/png", headers=[(b"content-length", length)], then=NEVER)


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"\xb2", b"", b"1 2"])
def test_an_odd_length_is_refused(length):
    with refused(400, "Content-Length"):
        images("image/png", PNG, headers=[(b"content-length", length)])


@pytest.mark.hostile
def test_a_large_body_is_refused_while_it_arrives():
    with refused(413, "100,000"):
        images("image/png", PNG + bytes(100_001), then=NEVER)
    assert images("image/png", PNG.ljust(100_000))


def test_a_slow_body_is_given_up_and_its_connection_too():
    with refused(408, "0.01 s") as caught:
        images("image/png", PNG, limits=ApiLimits(body_timeout_s=0.01), then=NEVER)
    assert caught.value.headers == {"Connection": "close"}


def test_a_disconnect_is_not_a_problem_of_the_request():
    with pytest.raises(ClientDisconnect):
        images("image/png", PNG, then="gone")


@pytest.mark.parametrize("kind", ["image/png", form()[0], "application/json"])
def test_no_images_are_refused(kind):
    bodies = {"image/png": b"", "application/json": b'{"images": []}'}
    with refused(422, "no images"):
        images(kind, bodies.get(kind, form()[1]))


def test_an_empty_image_is_refused_by_name():
    with refused(422, "b.png is empty"):
        images(*form(("image", "a.png", PNG), ("image", "b.png", b"")))
    with refused(422, "image 0 is empty"):
        images(*listed({"data": ""}))


@pytest.mark.hostile
def test_too_many_images_are_refused():
    with refused(413, "3"):
        images(*form(*[("image", None, PNG)] * 4))
    with refused(413, "3"):
        images(*listed(*[{"data": b64(PNG)}] * 4))
    assert len(images(*form(*[("image", None, PNG)] * 3))) == 3
    assert len(images(*listed(*[{"data": b64(PNG)}] * 3))) == 3


def test_unknown_parts_are_refused_by_name():
    with refused(422, "'url'", "'image'"):
        images(*form(("image", None, PNG), ("url", None, b"http://localhost/")))


def test_a_boundary_counts_only_at_the_start_of_a_line():
    data = PNG + b"--b0undary--\r\n--b0undar\r\n-b0undary\n--b0undary"
    assert images(*form(("image", None, data))) == [("image 0", data)]


def test_a_form_may_quote_its_boundary_and_have_words_after_its_end():
    kind, body = form(("image", None, PNG), boundary="a b")
    assert images(kind.replace("=a b", '="a b"'), body + b"an epilogue\r\n--a b") == [("image 0", PNG)]


@pytest.mark.parametrize("cut", range(1, 150, 3))
def test_a_form_that_is_cut_short_is_refused(cut):
    kind, body = form(("image", "a.png", PNG))
    cut = min(cut, len(body) - 3)  # the end needs no line end after it
    with refused(400, "form"):
        images(kind, body[: len(body) - 2 - cut])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--b\r\n"),
        ("multipart/form-data; boundary=" + "b" * 71, b"--" + b"b" * 71 + b"--"),
        ("multipart/form-data; boundary=b", b"--c\r\n"),
        ("multipart/form-data; boundary=b", b"--b \r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: attachment; name="image"\r\n\r\nx\r\n--b--'),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\n" + b'Content-Disposition: form-data; name="image"\r\n' * 2 + b"\r\nx\r\n--b--",
        ),
        ("multipart/form-data; boundary=b", b"--b\r\nA: " + b"b" * 9000 + b"\r\n\r\nx\r\n--b--"),
    ],
)
def test_an_invalid_form_is_refused(kind, body):
    with refused(400):
        images(kind, body)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe{\0}\0", 400, "UTF-8"),
        (b'\xef\xbb\xbf{"images": []}', 400, "not JSON"),
        (b'{"images": ' + b"[" * 2900 + b"]" * 2900 + b"}", 400, "deep"),
        (b"[" * 99_000, 422, "more values"),
        (b"{" + b'"a":1,' * 16_000 + b'"b":1}', 422, "more values"),
        (b"1" * 99_000, 400, "digits"),
        (b"[]", 422, "object"),
        (b"{}", 422, "images"),
        (b'{"images": {}}', 422, "images"),
        (b'{"images": [], "top_k": 5}', 422, "'top_k'"),
        (b'{"images": [], "images": []}', 422, "'images' twice"),
        (b'{"images": [1]}', 422, "images[0]"),
        (b'{"images": [{"data": "iVBO", "name": 1}]}', 422, "images[0].name"),
        (b'{"images": [{"data": "iVBO", "what\\ud800\\u0007": 1}]}', 422, "'what'"),
        (b'{"images": [{"url": "http://localhost/cat.png"}]}', 422, "nothing is fetched"),
        (b'{"images": [{"data": "data:image/png;base64,iVBO"}]}', 422, "base64"),
    ],
)
def test_wrong_json_is_refused_with_where_it_is_wrong(body, status, word):
    with refused(status, word):
        images("application/json", body)


@pytest.mark.parametrize("given", [{"images": [1] * 100}, {f"x{number}": 1 for number in range(100)}])
def test_validation_stops_at_the_first_wrong_member(given):
    with pytest.raises(ValidationError) as caught:
        ImageRequest.model_validate(given)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    "text", ["iVB", "iVBO=", "=iVBO", "iV=BO", "iVBO\n", "iV BO", "iVB_", "iVBOA", "iVA=iVBO", "Ünic", "\ud800AAA"]
)
def test_invalid_base64_is_refused(text):
    with refused(422, "images[0]", "base64"):
        images(*listed({"data": text}))


def test_large_json_is_read_too():
    data = PNG + bytes(range(256)) * 2000
    assert images(*listed({"data": b64(data)}), limits=ApiLimits(), piece=65536) == [("image 0", data)]
    padded = b64(data + b"1")
    assert padded.endswith("=")
    with refused(422, "base64"):
        images(*listed({"data": padded + "AAAA"}), limits=ApiLimits(), piece=65536)


@given(st.text(max_size=600))
@example("\ud800\x07 \u202ecat\x00.png")
def test_names_are_returned_without_unprintable_characters(name):
    [(cleaned, _)] = images(*listed({"data": b64(PNG), "name": name}))
    assert 0 < len(cleaned) <= 255
    assert cleaned.isprintable()
    if name.isprintable() and 0 < len(name) <= 255:
        assert cleaned == name


def test_neither_names_nor_images_show_in_a_repr():
    [upload] = asyncio.run(read_images(request(*form(("image", "secret.png", PNG))), LIMITS))
    assert "secret" not in repr(upload)
    assert "PNG" not in repr(upload)


@pytest.mark.hostile
@given(
    st.lists(st.tuples(st.none() | st.text("ab .-ü", min_size=1), st.binary()), min_size=1, max_size=3),
    st.integers(1, 50),
)
def test_a_form_of_any_bytes_in_any_pieces_is_read_whole(parts, piece):
    sent = [("image", name, PNG + data) for name, data in parts]
    read = images(*form(*sent, boundary="0f2c7e"), piece=piece)
    assert [data for _, data in read] == [data for _, _, data in sent]


@pytest.mark.hostile
@given(st.sampled_from(["form", "json", "raw"]), st.data())
def test_damaged_requests_are_read_or_refused_but_nothing_else_happens(kind, data):
    content_type, body = {
        "form": form(("image", "a.png", PNG), ("image", None, JPEG)),
        "json": listed({"data": b64(PNG), "name": "a"}),
        "raw": ("image/png", PNG),
    }[kind]
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        assert 1 <= len(images(content_type, bytes(damaged))) <= 3
    except Problem as problem:
        refusal = problem.as_dict("")
    else:
        return
    assert 400 <= refusal["status"] < 500
    assert json.dumps(refusal, ensure_ascii=False).encode()
