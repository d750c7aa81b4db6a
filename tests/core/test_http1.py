"""What a request is: RequestReader beside h11, made as strict as ADR 68 says, over valid and broken bytes."""

import random
import re

import h11
import pytest

from serfer.core.http1 import MOST_HEADERS, Refusal, RequestReader

MOST = 2000  # bytes of a head
CODING = (b"transfer-encoding",)  # whose value h11 writes in lower case
SEEDS = range(8)
MUTATIONS = 500  # of each seed
HOST = b"Host: x\r\n"
CHUNKED = b"POST /c HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
VALID = [
    b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
    b'GET /a%20b?c=d HTTP/1.1\r\nHOST: \t x:80 \t\r\nX-Y:\r\nX-Y: a\tb  c\r\nCookie: \xe9="1"\r\n\r\n',
    b"HEAD * HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST /s HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nab\r\nc",
    b"POST /s HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nConnection: x, Close ,y\r\n\r\n",
    b"GET http://y:1/p?q HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET HTTP://[::1]?q HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    CHUNKED + b"5\r\nab\r\nc\r\n0\r\n\r\n",
    CHUNKED + b'0a;e="f;g" \r\n0123456789\r\n1\r\nx\r\n000\r\nTrailer: t\r\nOther:\r\n\r\n',
    CHUNKED.replace(b"chunked", b"CHUNKED").replace(b"\r\n\r\n", b"\r\nExpect: x\r\nExpect: 100-Continue\r\n\r\n")
    + b"1\r\n\r\r\n0\r\n\r\n",
]
PIECES = [
    *(bytes([code]) for code in (0, 9, 10, 11, 12, 13, 32, 34, 43, 44, 45, 48, 57, 58, 59, 64, 65, 127, 128, 255)),
    *(b"\r\n", b"\n", b"\r\n\r\n", b"\r\n ", b"\n\n", HOST, b"Content-Length: 1\r\n", b"Content-Length: 5, 5\r\n"),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Connection: close\r\n",
        b"HTTP/1.0",
        b"0\r\n",
    ),
    *(b"Transfer-Encoding : chunked\r\n", b"1\r\nx\r\n", b"X: y\r\n" * (MOST_HEADERS + 1), b"x" * MOST, b"http://z/"),
]
STRICTER = {  # what h11 takes and we refuse, and why
    "two_lengths": "Content-Length twice, or a list, which a server before us may read otherwise (RFC 9110, 8.6)",
    "control": "a carriage return or control character in a chunk's extension",
    "framing": "a trailer that says how to read its request (RFC 9110, 6.5.1)",
    "line": "trailers whose lines are folded, or end without a carriage return (RFC 9112, 2.2 and 5.2)",
    "size": "h11 counts a head only while it is incomplete",
}


def by_h11(sent):
    """Return requests (method, target, headers, body, whether it is whole), and how the connection goes on."""
    requests, connection = [], h11.Connection(h11.SERVER, MOST)
    connection.receive_data(sent)
    try:
        while True:
            head = connection.trailing_data[0]
            event = connection.next_event()
            rest = connection.trailing_data[0]
            if isinstance(event, h11.Request):
                _check_lines(head[: len(head) - len(rest)], event)
                requests.append([event.method, *_origin_form(event), b"", False])
            elif isinstance(event, h11.Data):
                requests[-1][3] += event.data
            elif isinstance(event, h11.EndOfMessage):
                _check_end(requests[-1][2], sent[: len(sent) - len(rest)])
                requests[-1][4] = True
                connection.send(h11.Response(status_code=404, headers=[(b"content-length", b"0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return requests, "closes"
                connection.start_next_cycle()
            else:
                return requests, "waits"
    except h11.RemoteProtocolError:
        return requests, "refuses"


def _check_lines(head, request):
    names = [name for name, _ in request.headers]
    framed = b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0")
    if re.search(rb"(?<!\r)\n|\n[ \t]", head) or request.http_version not in (b"1.0", b"1.1") or framed:
        raise h11.RemoteProtocolError("ambiguous")
    if len(names) > MOST_HEADERS:
        raise h11.RemoteProtocolError("too many")


def _check_end(headers, received):
    if any(name in CODING for name, _ in headers) and not received.endswith(b"\r\n\r\n"):
        raise h11.RemoteProtocolError("chunks that end otherwise")


def _origin_form(request):
    headers = [(bytes(name), bytes(value)) for name, value in request.headers]
    if request.target.startswith(b"/") or request.target == b"*":
        return request.target, headers
    url = re.fullmatch(rb"(?i)https?://((?:[\w.-]+|\[[\da-f.:]+\])(?::\d{0,5})?)(/.*|\?.*)?", request.target)
    if url is None:
        raise h11.RemoteProtocolError("no path")
    path = url[2] or b"/"
    own = [(b"host", url[1]), *(pair for pair in headers if pair[0] != b"host")]
    return path if path.startswith(b"/") else b"/" + path, own


def by_us(pieces):
    """Return the same as `by_h11`, and why the connection is refused."""
    requests, reader = [], RequestReader(MOST)
    try:
        for piece in pieces:
            reader.unread += piece
            while True:
                if reader.in_head:
                    head = reader.read_head()
                    if head is None:
                        break
                    headers = [(name, value.lower() if name in CODING else value) for name, value in head.headers]
                    requests.append([head.method, head.target, headers, b"", reader.whole])
                if not reader.whole:
                    requests[-1][3] += reader.read_body()
                    requests[-1][4] = reader.whole
                if not reader.whole:
                    break
                if head.closes:
                    return requests, "closes", ""
                reader.read_next()
    except Refusal as refusal:
        return requests, "refuses", refusal.detail
    return requests, "waits", ""


def drawn(seed):
    """Return bytes of a connection, whole requests with a few changes, and the same in pieces."""
    draw = random.Random(seed)  # noqa: S311 - the same in every run
    sent = b"".join(draw.choices(VALID, k=draw.randint(1, 3)))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 4))):
        at, until = draw.randint(0, len(sent)), draw.choice((0, 0, 1, 1, 2, 30))
        sent = sent[:at] + draw.choice([b"", *PIECES, sent[at : at + 9]]) + sent[at + until :]
    cuts = sorted(draw.randint(0, len(sent)) for _ in range(draw.choice((0, 0, 1, 3, len(sent)))))
    return sent, [sent[first:last] for first, last in zip([0, *cuts], [*cuts, len(sent)], strict=True)]


def reason_of(sent, why, *, is_chunked):
    """Return why we are stricter with what was sent, None for no reason."""
    if "large" in why:
        return "size"
    if "a trailer" in why:
        return "framing"
    if "twice" in why or "number" in why:
        return "two_lengths" if re.search(rb"(?i)content-length:.*(?:content-length:|,)", sent, re.DOTALL) else None
    if "ends without CR LF" in why:
        return "line" if is_chunked else None
    return "control" if "chunks" in why and re.search(rb";[^\n]*[\0-\x08\x0b-\x1f]", sent) else None


def compared(sent, pieces):
    """Compare both; return why we are stricter, None where both do the same."""
    theirs, they = by_h11(sent)
    ours, we, why = by_us(pieces)
    taken = [request for request in ours if request[4]]
    assert taken == theirs[: len(taken)]
    assert [head[:3] for head in ours] == [head[:3] for head in theirs[: len(ours)]]
    if we == they == "waits":
        assert ours == theirs
    if we == "refuses" and they == "waits" and not any(request[4] for request in theirs[len(taken) :]):
        _, they = by_h11(sent + b"\r\n\r\n")  # for whose end it waits
    if we == "refuses" != they:
        reason = reason_of(sent, why, is_chunked=bool(ours) and any(name in CODING for name, _ in ours[-1][2]))
        assert reason in STRICTER, why
        return reason
    assert we == they or (we, they) == ("waits", "refuses")  # a line's end is awaited
    return None


@pytest.mark.hostile
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_taken_h11_takes_and_what_is_refused_it_refuses_but_for_reasons(seed):
    for number in range(MUTATIONS):
        sent, pieces = drawn(f"{seed} {number}")
        compared(sent, pieces)


@pytest.mark.parametrize("message", VALID)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_valid_requests_are_taken_in_pieces_and_one_after_the_other(message, size):
    sent = VALID[0] + VALID[8] + message
    requests, goes_on, _ = by_us([sent[at : at + size] for at in range(0, len(sent), size)])
    assert (requests, goes_on) == by_h11(sent)
    assert [request[4] for request in requests] == [True] * 3


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (VALID[4].replace(b"Expect: 100-continue", b"Content-Length: 5"), "two_lengths"),
        (VALID[4].replace(b": 5", b": 5, 5"), "two_lengths"),
        (CHUNKED + b"1;a=\rb\r\nx\r\n0\r\n\r\n", "control"),
        (CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n", "framing"),
        (CHUNKED + b"0\r\nX: y\nZ: z\r\n\r\n", "line"),
        (VALID[0][:-2] + b"X: " + b"y" * MOST + b"\r\n\r\n", "size"),
    ],
)
def test_reader_is_stricter_than_h11(message, reason):
    assert compared(message, [message]) == reason


@pytest.mark.hostile
@pytest.mark.parametrize(
    "line", [b"X:" + b" " * 30_000, b"X: " + b"a " * 15_000, b"a" * 30_000, b"X: a" + b"\t" * 30_000]
)
def test_time_of_a_head_grows_with_its_length_alone(line):
    """A pattern that tries blanks again would take minutes."""
    reader = RequestReader(10**6)
    reader.unread = VALID[0][:-2] + 10 * (line + b"\r\n") + line + b"\0\r\n\r\n"
    with pytest.raises(Refusal, match="no header"):
        reader.read_head()
