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
from tests.api.malformed import form

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


def listed(*entries):
    return "application/json", json.dumps({"images": list(entries)}).encode()


def b64(data):
    return base64.b64encode(data).decode()


def test_forms_and_json_give_their_images_in_order_under_their_names_and_a_raw_image_is_one():
    sent = form(("image", "a.jpg", JPEG), ("image", None, PNG), ("image", "ü.png", PNG))
    assert images(*sent) == [("a.jpg", JPEG), ("image 1", PNG), ("ü.png", PNG)]
    assert images(*listed({"data": b64(JPEG), "name": "cat"}, {"data": b64(PNG)})) == [("cat", JPEG), ("image 1", PNG)]
    for kind in (name for name in ACCEPTED if name.startswith("image/")):
        assert images(kind.upper() + "; q=1", JPEG) == [("image 0", JPEG)]


@pytest.mark.parametrize("data", [b"x", b"<svg/>", b"%PDF-1.7", b"RIFF\0\0\0\0WAVE", b"RIFF", b"PNG", b"\0" * 99])
def test_other_content_is_not_an_image_under_any_name(data):
    with refused(415, "image 0", "JPEG"):
        images("image/png", data)
    with refused(415, "holiday.jpg"):
        images(*form(("image", "holiday.jpg", data)))


MEDIA_TYPES = (None, "", "text/plain", "application/octet-stream", "image/svg+xml", "image/*", "é")


@pytest.mark.parametrize(
    ("kind", "header", "status", "words"),
    [
        *((kind, (), 415, ACCEPTED) for kind in MEDIA_TYPES),
        ("image/png", (b"content-type", b"application/json"), 400, ["more than once"]),
        *(("image/png", (b"content-encoding", coding), 415, ["Content-E"]) for coding in (b"gzip", b"identity, br")),
        *(
            ("image/png", (b"content-length", length), 400, ["Content-Length"])
            for length in (b"-1", b"1e3", b"\xb2", b"", b"1 2")
        ),
    ],
)
def test_wrong_headers_are_refused_by_name(kind, header, status, words):
    with refused(status, *words) as caught:
        images(kind, PNG, headers=[header] if header else [])
    assert words is not ACCEPTED or caught.value.headers["Accept"] == ", ".join(ACCEPTED)
    assert images("image/png", PNG, headers=[(b"content-encoding", b"Identity")])


@pytest.mark.hostile
@pytest.mark.parametrize("length", [b"100001", b"9" * 5000])
def test_a_large_body_is_refused_before_it_is_read(length):
    with refused(413, "100,000"):
        images("image/png", headers=[(b"content-length", length)], then=NEVER)


@pytest.mark.hostile
def test_a_large_body_is_refused_while_it_arrives():
    with refused(413, "100,000"):
        images("image/png", PNG + bytes(100_001), then=NEVER)
    assert images("image/png", PNG.ljust(100_000))


def test_a_slow_body_is_given_up_with_its_connection_and_a_disconnect_is_no_problem_of_the_request():
    with refused(408, "0.01 s") as caught:
        images("image/png", PNG, limits=ApiLimits(body_timeout_s=0.01), then=NEVER)
    assert caught.value.headers == {"Connection": "close"}
    with pytest.raises(ClientDisconnect):
        images("image/png", PNG, then="gone")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (("image/png", b""), 422, ["no images"]),
        (form(), 422, ["no images"]),
        (listed(), 422, ["no images"]),
        (form(("image", "a.png", PNG), ("image", "b.png", b"")), 422, ["b.png is empty"]),
        (listed({"data": ""}), 422, ["image 0 is empty"]),
        (form(*[("image", None, PNG)] * 4), 413, ["3"]),
        (listed(*[{"data": b64(PNG)}] * 4), 413, ["3"]),
        (form(("image", None, PNG), ("url", None, b"http://localhost/")), 422, ["'url'", "'image'"]),
    ],
)
def test_no_images_or_too_many_or_something_else_are_refused(request_, status, words):
    with refused(status, *words):
        images(*request_)
    for most in (form(*[("image", None, PNG)] * 3), listed(*[{"data": b64(PNG)}] * 3)):
        assert len(images(*most)) == 3


def test_a_boundary_counts_only_at_the_start_of_a_line_and_may_be_quoted_and_words_may_follow_the_end():
    data = PNG + b"--b0undary--\r\n--b0undar\r\n-b0undary\n--b0undary"
    assert images(*form(("image", None, data))) == [("image 0", data)]
    kind, body = form(("image", None, PNG), boundary="a b")
    assert images(kind.replace("=a b", '="a b"'), body + b"an epilogue\r\n--a b") == [("image 0", PNG)]


@pytest.mark.parametrize("preamble", [b"", b"\r\n", b"a preamble\r\nof lines\r\n", b"--b\r\n"])
@pytest.mark.parametrize("padding", [b"", b"  ", b"\t", b" " * 255])
def test_form_has_a_preamble_and_padding_as_rfc_2046_lets_it(preamble, padding):
    """Section 5.1.1. Only delimiters lose their blanks, not lines of an image that look alike."""
    data = PNG + b"x--b \r\n\n--b \r\n\r\n--b0 \r\n"
    kind, body = form(("image", None, data), ("image", "a.png", PNG), boundary="b\\1")
    body = body.replace(b"--b\\1", b"--b\\1" + padding).replace(padding + b"--\r\n", b"--" + padding + b"\r\n")
    assert images(kind, preamble + body) == [("image 0", data), ("a.png", PNG)]
    with refused(400, "form"):
        images(kind, body.replace(b"\r\n", b" " * 256 + b"\r\n"))


@pytest.mark.parametrize("cut", range(1, 150, 3))
def test_a_form_that_is_cut_short_is_refused(cut):
    kind, body = form(("image", "a.png", PNG))
    cut = min(cut, len(body) - 3)  # the end needs no line end after it
    with refused(400, "form"):
        images(kind, body[: len(body) - 2 - cut])


HEAD = b"Content-Disposition: form-data"


@pytest.mark.parametrize(
    ("parameters", "body"),
    [
        ("", b"--b\r\n"),
        ("; boundary=" + "b" * 71, b"--" + b"b" * 71 + b"--"),
        *(("; boundary=b", body) for body in (b"--c\r\n", b"--b \r\n", b"--b\r\n\r\nx\r\n--b--")),
        *(
            ("; boundary=b", b"--b\r\n" + head + b"\r\n\r\nx\r\n--b--")
            for head in (
                *(b'Content-Disposition: attachment; name="image"', HEAD, HEAD + b'; name="image"\r\n' + HEAD),
                b"A: " + b"b" * 9000,
            )
        ),
    ],
)
def test_an_invalid_form_is_refused(parameters, body):
    with refused(400):
        images(f"multipart/form-data{parameters}", body)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe{\0}\0", 400, "UTF-8"),
        *((wrong, 400, "not JSON") for wrong in (b'\xef\xbb\xbf{"images": []}', b'{"images": []}\0', b"{} {}")),
        *((wrong, 400, "not JSON") for wrong in (b"{'images': []}", b'{"images": [],}')),
        (b'{"images": NaN}', 422, "images"),
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
