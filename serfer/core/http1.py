"""Requests of HTTP/1.1 as bytes of a connection (RFC 9112), read strictly.

    head ──> body of a length, or in chunks with trailers ──> whole ──> next head

What two servers may read differently is refused (sections 2.2, 5.2, 6.1), and whatever h11 refuses: tests compare both
(tests/core/test_http1.py). Heads, trailers and lines of chunks are bounded.
"""

from __future__ import annotations

import re
from http import HTTPStatus

MOST_HEADERS = 100
_TOO_LARGE = f"the request's head is too large, or has more than {MOST_HEADERS} headers"
_TOKEN = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+"
_REQUEST = re.compile(rb"(%b) ([!-~]+) HTTP/1\.([01])\r\n" % _TOKEN)
_FIELD = re.compile(
    rb"^(%b):[ \t]*+((?:[^\0\s]++(?:[ \t]++[^\0\s]++)*+)?+)[ \t]*+\r\n" % _TOKEN, re.MULTILINE
)  # possessive: no input makes it try twice
_CHUNK = re.compile(rb"\r\n([0-9A-Fa-f]{1,20})(?:;[^\0-\x08\n-\x1f]*)?[ \t]*\r\n")
_URL = re.compile(rb"https?://((?:[\w.-]+|\[[\da-f.:]+\])(?::\d{0,5})?)(/.*|\?.*)?", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,20}")
_BARE = re.compile(rb"(?<!\r)\n")
_CLOSE = re.compile(rb"(?:^|,)[ \t]*close[ \t]*(?:,|$)", re.IGNORECASE)
_CONTINUE = re.compile(rb"(?:^|,)[ \t]*100-continue[ \t]*(?:,|$)", re.IGNORECASE)
_BLANK_LINE, _SLASH = b"\r\n\r\n", ord("/")
_ONCE = (b"host", b"content-length", b"transfer-encoding")


class Refusal(Exception):  # noqa: N818 - as Problem, for what is not HTTP
    """Bytes that are no request: a status, and a line for people."""

    def __init__(self, detail: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Head:
    """A request's method, target (a path and its query, or `*`), minor version and headers, names in lower case.

    `sent` has the headers by name. Afterwards the client `closes`, or takes no more; it `expects` a 100 (Continue).
    """

    __slots__ = ("closes", "expects", "headers", "is_1_0", "method", "sent", "target")

    def __init__(self, line: re.Match[bytes], headers: list[tuple[bytes, bytes]]) -> None:
        self.method, self.target = line[1], line[2]
        self.is_1_0 = line[3] == b"0"
        self.headers, self.sent = headers, dict(headers)
        if len(self.sent) < len(headers):
            _merge(headers, self.sent)
        if not self.is_1_0 and b"host" not in self.sent:
            raise Refusal("there is no Host")
        if self.target[0] != _SLASH and self.target != b"*":
            self._take_host()
        self.closes = self.is_1_0 or (b"connection" in self.sent and closes(self.sent[b"connection"]))
        self.expects = b"expect" in self.sent and not self.is_1_0 and bool(_CONTINUE.search(self.sent[b"expect"]))

    def _take_host(self) -> None:
        url = _URL.fullmatch(self.target)
        if url is None:
            raise Refusal("the target is neither a path nor a URL")
        path = url[2] or b"/"
        self.target = path if path.startswith(b"/") else b"/" + path
        self.headers = [(b"host", url[1]), *(pair for pair in self.headers if pair[0] != b"host")]


def _merge(headers: list[tuple[bytes, bytes]], sent: dict[bytes, bytes]) -> None:
    names = [name for name, _ in headers]
    if any(names.count(name) > 1 for name in _ONCE):
        raise Refusal("a header that is for once is there twice: Host, Content-Length or Transfer-Encoding")
    for name in sent:
        sent[name] = b",".join(value for other, value in headers if other == name)


def closes(connection: bytes) -> bool:
    """Return whether a Connection header says that the connection ends."""
    return _CLOSE.search(connection) is not None


class RequestReader:
    """Reads one request after the other of what is put to `unread`; methods raise Refusal for what is none.

    It is `in_head` until a head has been read. Then it reads a body until the request is `whole`, and waits for
    `read_next`.
    """

    def __init__(self, most_head: int) -> None:
        self.unread = b""
        self.in_head, self.whole = True, False
        self._most_head = most_head
        self._searched = 0  # bytes of `unread` in which no lines end
        self._left = 0  # bytes of the body, or of its chunk
        self._chunked = False

    def read_next(self) -> None:
        self.in_head, self.whole = True, False

    def read_head(self) -> Head | None:
        """Return the next head, None where it has not arrived."""
        end = self._end_of_lines(0)
        if not end:
            if self.unread and self.unread[0] <= ord(" "):
                raise Refusal("there is no request line")
            return None
        lines, self.unread = self.unread[: end - 2], self.unread[end:]
        line = _REQUEST.match(lines)
        if line is None:
            raise Refusal("the first line is not METHOD TARGET HTTP/1.1")
        head = Head(line, _fields(lines, line.end()))
        self._frame(head)
        self.in_head = False
        return head

    def _frame(self, head: Head) -> None:
        sent, self._left = head.sent, 0
        self._chunked, has_length = b"transfer-encoding" in sent, b"content-length" in sent
        if self._chunked and (has_length or head.is_1_0 or sent[b"transfer-encoding"].lower() != b"chunked"):
            raise Refusal("Transfer-Encoding is not chunked, or stands beside Content-Length, or in HTTP/1.0")
        if has_length:
            if not _LENGTH.fullmatch(sent[b"content-length"]):
                raise Refusal("Content-Length is not a number")
            self._left = int(sent[b"content-length"])
        self.whole = not self._left and not self._chunked
        if self._chunked:
            self.unread = b"\r\n" + self.unread  # as the end of a chunk is before each line of another

    def read_body(self) -> bytes:
        """Return what there is of the body."""
        if self._chunked:
            return self._read_chunks()
        data, self.unread = self.unread[: self._left], self.unread[self._left :]
        self._left -= len(data)
        self.whole = not self._left
        return data

    def _read_chunks(self) -> bytes:
        data, at, pieces = self.unread, 0, list[bytes]()
        while True:
            if self._left:
                pieces.append(data[at : at + self._left])
                at += len(pieces[-1])
                self._left -= len(pieces[-1])
            end = -1 if self._left else data.find(b"\r\n", at + 2)
            if end < 0 and b"\r\n".startswith(data[at : at + 2]):
                if len(data) - at > self._most_head:
                    raise Refusal(_TOO_LARGE, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                self.unread = data[at:]
                break
            line = _CHUNK.fullmatch(data, at, end + 2)
            if line is None:
                raise Refusal("the body's chunks are broken")
            self._left = int(line[1], 16)
            if not self._left:
                self.unread = data[at:]
                self._read_trailers(end + 2 - at)
                break
            at = end + 2
        return b"".join(pieces)

    def _read_trailers(self, start: int) -> None:
        if end := self._end_of_lines(start - 2):
            if any(name in _ONCE for name, _ in _fields(self.unread[: end - 2], start)):
                raise Refusal("a trailer says how to read its request")
            self.unread, self.whole = self.unread[end:], True

    def _end_of_lines(self, start: int) -> int:
        at = self.unread.find(_BLANK_LINE, max(start, self._searched - 3))
        end = 0 if at < 0 else at + 4
        if (end or len(self.unread)) - start > self._most_head:
            raise Refusal(_TOO_LARGE, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if not end and _BARE.search(self.unread, max(start, self._searched)):
            raise Refusal("a line ends without CR LF")
        self._searched = 0 if end else len(self.unread)
        return end


def _fields(lines: bytes, start: int) -> list[tuple[bytes, bytes]]:
    fields = _FIELD.findall(lines, start)
    count = len(fields)
    if count != lines.count(b"\n", start):
        raise Refusal("a line of the head is no header, or is folded, or ends without CR LF")
    if count > MOST_HEADERS:
        raise Refusal(_TOO_LARGE, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    return [(name.lower(), value) for name, value in fields]
