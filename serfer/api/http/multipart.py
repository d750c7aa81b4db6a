"""A form (multipart/form-data, RFC 7578) that has arrived whole, cut into its parts.

Cutting is by `bytes.find` alone. python-multipart's parser (0.0.34) walks through some bodies byte by byte: 20 MiB of
blanks after a boundary take 6 s of the event loop's time, 20 MiB of boundaries that no line's end follows 4 to 5 s
(docs/adr/0043-forms-are-cut-without-a-parser.md). What is subtle, the quoting in headers, is left to that library.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.multipart import parse_options_header

from serfer.api.http.problems import Problem

_END = b"\r\n"
_MOST_HEAD = 8 * 1024  # bytes of a part's own headers
_MOST_BOUNDARY = 70  # characters (RFC 2046, section 5.1.1)


@dataclass(frozen=True)
class Part:
    """One part of a form; `filename` is what the client calls its file, if it says so."""

    name: str
    filename: str | None = field(repr=False)
    data: bytes = field(repr=False)


def split_form(content_type: str, body: bytes, most: int) -> list[Part]:
    """Return a form's parts in order; raises Problem, 400 for what is not a form, 413 for more than `most` parts."""
    mark = b"--" + boundary_of(content_type)
    if not body.startswith(mark):
        raise Problem(400, "the form does not begin with the boundary that Content-Type names")
    parts: list[Part] = []
    at = len(mark)
    while not body.startswith(b"--", at):
        if len(parts) == most:
            raise Problem(413, f"the form has more than {most} parts: a request takes {most} images at most")
        head_end = body.find(_END + _END, at, at + _MOST_HEAD)
        if head_end < 0 or not body.startswith(_END, at):
            raise Problem(400, f"part {len(parts)} of the form is cut short, or has no headers of at most 8 KiB")
        start = head_end + len(_END + _END)
        end = body.find(_END + mark, start)
        if end < 0:
            raise Problem(400, f"part {len(parts)} of the form has no boundary after it: the form is cut short")
        parts.append(part_of(body[at:head_end], body[start:end], len(parts)))
        at = end + len(_END + mark)
    return parts


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a form's Content-Type names; raises Problem 400."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= _MOST_BOUNDARY:
        raise Problem(
            400, f"Content-Type: multipart/form-data needs a boundary of 1 to {_MOST_BOUNDARY} characters: boundary=..."
        )
    return boundary


def part_of(head: bytes, data: bytes, number: int) -> Part:
    """Build a part from its header lines and its content."""
    lines = (line.partition(b":") for line in head.split(_END))
    values = [value for name, _, value in lines if name.strip().lower() == b"content-disposition"]
    kind, options = parse_options_header(values[0].strip()) if len(values) == 1 else (b"", {})
    if kind != b"form-data" or b"name" not in options:
        raise Problem(400, f'part {number} of the form lacks its header Content-Disposition: form-data; name="..."')
    filename = options.get(b"filename")
    return Part(_text(options[b"name"]), None if filename is None else _text(filename), data)


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
