"""A form (multipart/form-data, RFC 7578) that has arrived whole, cut into its parts by `multipart` in strict mode.

What is quoted in headers is read by the standard library's email package, as clients of all kinds write it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from email.message import Message

from multipart import MultipartError, MultipartSegment, PushMultipartParser

from serfer.api.http.problems import Problem

_MOST_BOUNDARY = 70  # characters (RFC 2046, section 5.1.1)


@dataclass(frozen=True)
class Part:
    """One part of a form; `filename` is what the client calls its file, if it says so."""

    name: str
    filename: str | None = field(repr=False)
    data: bytes = field(repr=False)


def split_form(content_type: str, body: bytes, most: int) -> list[Part]:
    """Return a form's parts in order; raises Problem, 400 for what is not a form, 413 for more than `most` parts."""
    parts: list[Part] = []
    chunks: list[bytes] = []
    boundary = _boundary(content_type)
    if not body.startswith(f"--{boundary}".encode()):
        raise Problem(400, "the form does not begin with the boundary that Content-Type names")
    try:
        with PushMultipartParser(boundary, header_charset="latin-1", strict=True) as parser:
            for event in parser.parse(body):
                if isinstance(event, MultipartSegment):
                    if len(parts) == most:
                        raise Problem(413, f"the form has more than the {most} parts that a request may have")
                    segment, chunks = event, []
                elif event is not None:
                    chunks.append(bytes(event))
                else:
                    parts.append(_part(segment, b"".join(chunks), len(parts)))
    except MultipartError as error:
        raise Problem(400, f"the form cannot be read: {error}, in part {len(parts)} or before it") from None
    return parts


def _boundary(content_type: str) -> str:
    boundary = _options(content_type)[1].get("boundary", "")
    if not 1 <= len(boundary) <= _MOST_BOUNDARY:
        raise Problem(
            400, f"Content-Type: multipart/form-data needs a boundary of 1 to {_MOST_BOUNDARY} characters: boundary=..."
        )
    return boundary


def _part(segment: MultipartSegment, data: bytes, number: int) -> Part:
    values = [value for name, value in segment.headerlist if name == "Content-Disposition"]
    kind, options = _options(values[0]) if len(values) == 1 else ("", {})
    if kind != "form-data" or "name" not in options:
        raise Problem(400, f'part {number} of the form lacks its header Content-Disposition: form-data; name="..."')
    return Part(options["name"], options.get("filename"), data)


def _options(header: str) -> tuple[str, dict[str, str]]:
    """Return the value of a header, in lower case, and its options, unquoted."""
    message = Message()
    message["Content-Type"] = header
    (kind, _), *options = message.get_params([("", "")])
    values = ((name, value[-1] if isinstance(value, tuple) else value) for name, value in options)
    return kind.lower(), {name: value.encode("latin-1", "replace").decode(errors="replace") for name, value in values}
