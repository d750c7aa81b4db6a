"""Requests that are wrong in one way each, as bytes on the wire: some 400 of them, the same in every run."""

import base64
import io
import json
import struct
import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image

LENGTH = b"Content-Length: %d\r\n"
B = "b0undary"
RANDOM = np.random.default_rng(7)


@dataclass(frozen=True)
class Case:
    """What is sent, in pieces; `fine` where an answer of 200 would be right too."""

    pieces: tuple[bytes, ...]
    fine: bool = False

    def __repr__(self):
        return f"{sum(map(len, self.pieces)):,} bytes"


def head(target="/v1/classify", *lines, method="POST"):
    """Return a request's head without the line that ends it."""
    header_lines = "".join(f"{line}\r\n" for line in ("Host: localhost", "Connection: close", *lines))
    return f"{method} {target} HTTP/1.1\r\n{header_lines}".encode("latin-1")


def post(content_type, body, *lines, target="/v1/classify", fine=False):
    types = [] if content_type is None else [f"Content-Type: {content_type}"]
    return Case((head(target, *types, *lines) + LENGTH % len(body) + b"\r\n", body), fine)


def raw(body, kind="png", *, fine=False):
    return post(f"image/{kind}", body, fine=fine)


def chunk(kind, data=b""):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth=8, colour=2, data=b"", *extra):
    """Build a PNG by hand; `data` is its pixels, compressed."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", data) + chunk(b"IEND")


@cache
def packed_zeros(size):
    """Compress zeros as blocks that others may follow."""
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(bytes(size)) + packer.flush(zlib.Z_FULL_FLUSH)


def zeros(size):
    """Compress zeros without ever having them: each mebibyte is the same bytes."""
    whole, rest = divmod(size, 1 << 20)
    end = b"\3\0" + struct.pack(">I", size % 65_521 << 16 | 1)  # an empty last block, and Adler-32
    return b"\x78\xda" + packed_zeros(1 << 20) * whole + packed_zeros(rest) + end


def encoded(kind, **settings):
    pixels = np.random.default_rng(1).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **settings)
    return buffer.getvalue()


GOOD = {
    "jpeg": encoded("JPEG"),
    "progressive": encoded("JPEG", progressive=True),
    "png": encoded("PNG"),
    "gif": encoded("GIF"),
    "webp": encoded("WEBP"),
    "lossless": encoded("WEBP", lossless=True),
    "bmp": encoded("BMP"),
    "tiff": encoded("TIFF"),
    "deflated": encoded("TIFF", compression="tiff_deflate"),
}
PNG = GOOD["png"]
FINE = post("image/png", PNG).pieces


def truncated():
    for kind, image in GOOD.items():
        for share in (0, 1, 2, 5, *range(10, 45, 3), 60, 80, 95):
            yield f"{kind} cut to {share}%", raw(image[: len(image) * share // 100], fine=share > 50)


def other_content():
    contents = {
        "text": b"hello",
        "html": b"<!doctype html><p>",
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "pdf": b"%PDF-1.7\n",
        "zip": b"PK\3\4" + bytes(60),
        "gzip": b"\x1f\x8b\x08" + bytes(60),
        "elf": b"\x7fELF" + bytes(60),
        "heic": b"\0\0\0\x18ftypheic" + bytes(60),
        "avif": b"\0\0\0\x18ftypavif" + bytes(60),
        "psd": b"8BPS\0\1" + bytes(60),
        "ico": b"\0\0\1\0\1\0" + bytes(60),
        "ppm": b"P6 2 2 255\n" + bytes(12),
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n",
        "wav": b"RIFF\x24\0\0\0WAVEfmt ",
        "zeros": bytes(1000),
        "spaces": b" " * 1000,
    }
    for name, content in contents.items():
        yield f"{name} called jpeg", raw(content, "jpeg")
    for kind in ("jpeg", "png", "gif", "webp", "bmp", "tiff"):
        start = {"webp": b"RIFF\4\0\0\0WEBP"}.get(kind, GOOD[kind][:8])
        yield f"{kind} in its first bytes only", raw(start + RANDOM.bytes(500))


def other_types():
    for kind in (
        *(None, "", "text/plain", "application/octet-stream", "image/svg+xml", "image/*", "*/*", "image"),
        "multipart/mixed",
        *("multipart/form-data", "multipart/form-data; boundary=", f"multipart/form-data; boundary={'b' * 71}"),
        *("application/x-www-form-urlencoded", "application/json", "image/png, image/jpeg", "\xe9", ";;;=", '"'),
    ):
        yield f"type {kind}", post(kind, PNG)
    yield "two types", post("image/png", PNG, "Content-Type: image/jpeg")
    for coding in ("gzip", "br", "deflate", "gzip, identity", "zstd", "nonsense"):
        yield f"coding {coding}", post("image/png", PNG, f"Content-Encoding: {coding}")


def sized(data, at, fmt, *sizes):
    return data[:at] + struct.pack(fmt, *sizes) + data[at + struct.calcsize(fmt) :]


def bombs():
    jpeg, gif, bmp, tiff = GOOD["jpeg"], GOOD["gif"], GOOD["bmp"], GOOD["tiff"]
    frame = jpeg.index(b"\xff\xc0") + 5
    yield "png of 0.9 gigapixels in 0.1 MB", raw(png(30_000, 30_000, 1, 0, zeros(30_000 * 3751)))
    yield "png of 4 gigabytes", raw(png(20_000, 50_000, 8, 6, zeros(1 << 26)))
    yield "png that says 2 to the 62", raw(png(2**31 - 1, 2**31 - 1, 8, 6, b"x"))
    yield "png of no size", raw(png(0, 0))
    yield "jpeg that says 4 gigapixels", raw(sized(jpeg, frame, ">HH", 65_500, 65_500))
    yield "gif that says 4 gigapixels", raw(sized(gif, 6, "<HH", 65_535, 65_535))
    yield "bmp that says 2 to the 62", raw(sized(bmp, 18, "<ii", 2**31 - 1, 2**31 - 1))
    yield "bmp of a negative width", raw(sized(bmp, 18, "<ii", -48, 40))
    yield "webp that says 268 megapixels", raw(sized(GOOD["lossless"], 21, "<I", 16_383 << 14 | 16_383), fine=True)
    yield "tiff that says 10 gigapixels", raw(tiff_of(100_000, 100_000))
    yield (
        "tiff whose directory is itself",
        raw(b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 330, 4, 1, 8) + b"\x08\0\0\0"),
    )
    yield "tiff of 65535 tags", raw(b"II*\0\x08\0\0\0\xff\xff" + struct.pack("<HHII", 700, 7, 1 << 31, 8) * 60_000)
    yield "tiff cut in its tags", raw(tiff[: len(tiff) - 30])
    yield "png whose text is a bomb", raw(png(8, 8, 8, 0, b"x", chunk(b"zTXt", b"a\0\0" + zeros(1 << 26))))
    yield "png whose profile is a bomb", raw(png(8, 8, 8, 0, b"x", chunk(b"iCCP", b"a\0\0" + zeros(1 << 26))))
    yield "png whose pixels are too many", raw(png(48, 40, 8, 2, zeros(1 << 26)), fine=True)
    yield "png within the limits", raw(png(2000, 2000, 8, 6, zeros(2000 * 8001)), fine=True)
    yield "png of 16 bits within the limits", raw(png(2000, 2000, 16, 2, zeros(2000 * 12_001)), fine=True)
    yield "strip of a png", raw(png(4_000_000, 1, 1, 0, zeros(500_001)), fine=True)
    progressive = GOOD["progressive"]
    scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    yield "jpeg of a thousand scans", raw(progressive[:-2] + scan * 1000 + progressive[-2:])
    yield "jpeg of empty segments", raw(jpeg[:2] + b"\xff\xe5\0\2" * 100_000 + jpeg[2:])
    yield "png of empty chunks", raw(PNG[:33] + chunk(b"abCd") * 100_000 + PNG[33:])
    yield "gif of 10,000 frames", raw(animated(10_000, 8), fine=True)
    yield "gif of 10,000 large frames", raw(animated(10_000, 60_000))
    yield "gif of empty blocks", raw(animated(1, 8, b"!\xfe\1a\0" * 100_000))
    yield (
        "sixteen pngs within the limits",
        post(*form(*[("image", None, png(2000, 2000, 1, 0, zeros(2000 * 251)))] * 16), fine=True),
    )


def tiff_of(width, height):
    """Build a TIFF's directory by hand; its one strip is far too short."""
    numbers = ((256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 64))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in numbers)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(numbers)) + entries + bytes(100)


def animated(frames, size, first=b""):
    screen = b"GIF89a" + struct.pack("<HHBBB", size, size, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, 8, 8, 0) + b"\x02\x07\x84\x8f\xa9\xcb\xed\x0f\x05\0"
    return screen + first + frame * frames + b";"


def form(*parts, boundary=B):
    """Return the Content-Type and the body of a form; parts are (name, file's name or None, bytes)."""
    pieces = []
    for name, filename, data in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\nContent-Type: image/png\r\n\r\n'
        pieces += head.encode(), data, b"\r\n"
    return f"multipart/form-data; boundary={boundary}", b"".join([*pieces, f"--{boundary}--\r\n".encode()])


def forms():
    kind, body = form(("image", "a", PNG))
    yield "form with another boundary", post(kind.replace(B, "other"), body)
    yield "form of 50,000 parts", post(*form(*[("image", "a", b"")] * 50_000))
    yield "form of boundaries", post(kind, f"--{B}\r\n".encode() * 50_000)
    for name in ("images", "", "image[]", "IMAGE", "\u202e", "x" * 4000):
        yield f"form with a part {name[:9]!r}", post(*form((name, "a", PNG)))
    for line in (
        *("", "X: y", "Content-Disposition:", "Content-Disposition: form-data", 'Content-Disposition: x; name="image"'),
        *("Content-Disposition: form-data; name", "Content-Disposition: form-data; filename=x", "X: " + "y" * 10_000),
        "\r\n".join(['Content-Disposition: form-data; name="image"'] * 2),
        "".join(f"X{number}: y\r\n" for number in range(2000)),
        'Content-Disposition: form-data; name="' + '\\"' * 3000,
        "Content-Disposition: form-data" + '; a=";"' * 1000,
    ):
        yield f"form with the head {line[:60]!r}", post(kind, f"--{B}\r\n{line}\r\n\r\n".encode() + PNG + body[-17:])
    yield "form with bare line ends", post(kind, body.replace(b"\r\n", b"\n"))
    yield "form with blanks after its boundary", post(kind, body.replace(b"\r\n", b" " * 100_000 + b"\r\n", 1))
    unended = f"\r\n--{B}x".encode() * 50_000
    yield "form of boundaries without line ends", post(kind, body[: body.rindex(b"\r\n--")] + unended)
    yield "form with a preamble", post(kind, b"hello\r\n" + body, fine=True)


def jsons():
    """Return what is large or deep: tests of uploads have the rest."""
    image = base64.b64encode(PNG).decode()
    for name, body in {
        "deep lists": b"[" * 100_000 + b"]" * 100_000,
        "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "lists within the count": b'{"images":' + b"[" * 15_000 + b"]" * 15_000 + b"}",
        "a million lists": b"[" + b"[]," * 1_000_000 + b"[]]",
        "a million numbers": b"[" + b"1," * 1_000_000 + b"1]",
        "a million names": b"{" + b",".join(b'"%d":1' % n for n in range(200_000)) + b"}",
        "a number of a million digits": b'{"images":' + b"1" * 1_000_000 + b"}",
        "17 images": json.dumps({"images": [{"data": image}] * 17}).encode(),
    }.items():
        yield f"json of {name}", post("application/json", body)


def parameters():
    for query in (
        *("top_k=0", "top_k=-1", "top_k=x", "top_k=", "top_k=1.5", "top_k=1e3", "top_k=99999", f"top_k={'9' * 5000}"),
        *("top_k=1&top_k=2", "top_k=%00", "top_k=NaN", "model=", "model=other", "model=../../etc/passwd", "model=%ff"),
        *("model=small&model=small", "model=" + "x" * 5000, "model=%00", "deadline_ms=0", "deadline_ms=-5"),
        *("deadline_ms=99999999999999", "deadline_ms=x", "deadline_ms=inf", "explain=2", "explain=", "explain=true%00"),
        *("topk=5", "%ff=1", "=", "&=&", "a[]=1", "image=x", "url=http://127.0.0.1/", "%E2%80%AE=1"),
    ):
        yield f"?{query[:40]}", post("image/png", PNG, target=f"/v1/classify?{query}", fine=query in {"=", "&=&"})


def headers():
    for value in ("", " ", "a b", "x" * 256, "\xe9", "a\tb"):
        yield f"Idempotency-Key: {value[:9]!r}", post("image/png", PNG, f"Idempotency-Key: {value}")
    yield "two idempotency keys", post("image/png", PNG, "Idempotency-Key: a", "Idempotency-Key: b")
    for line in (
        *("Prefer: nonsense;;=,,", "X-Request-Id: " + "x" * 1000, "X-Request-Id: \xe9", "Accept: nothing/at-all"),
        *("traceparent: 00-zz-zz-zz", "Range: bytes=0-1", "If-Match: *", "Cookie: a=b; c", "X-Forwarded-For: \xe9,,"),
        *("Authorization: Bearer x", "Accept-Encoding: gzip;q=x", "Origin: null", "Upgrade: websocket"),
    ):
        yield f"header {line[:30]}", post("image/png", PNG, line, fine=True)


def routes():
    results = ("x", "0" * 32, "..%2f..%2fetc")
    for method, target in (
        *((method, "/v1/classify") for method in ("GET", "PUT", "DELETE", "TRACE", "FOO")),
        *(("GET", f"/v1/results/{name}") for name in results),
        *(
            ("GET", path)
            for path in ("/nothing", "/v1/%00", "/%ff", "/../../etc/passwd", "//evil/", "/" + "a" * 10_000)
        ),
        *(("DELETE", "/v1/results/" + "f" * 32), ("POST", "/healthz")),
    ):
        yield f"{method} {target[:40]}", Case((head(target, method=method) + LENGTH % 0 + b"\r\n",))


def inference():
    """Return what only the wire shows of them: tests of tensors have the rest."""
    huge = {"name": "input", "shape": [2**62, 3, 34, 34], "datatype": "FP32", "data": [0.0]}
    for body in (b"", b"[" * 100_000, b"\xff", json.dumps({"inputs": [huge]}).encode()):
        yield f"v2 {body[:20]!r}", post("application/json", body, target="/v2/models/small/infer")


def broken_http():
    line, host = b"POST /v1/classify HTTP/1.1\r\n", b"Host: localhost\r\nContent-Type: image/png\r\n"
    chunked = line + host + b"Transfer-Encoding: chunked\r\n\r\n"
    for name, message in {
        "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "zeros": bytes(1000),
        "noise": RANDOM.bytes(1000),
        "a length beyond the limit": line + host + LENGTH % (1 << 30) + b"\r\n",
        "huge trailers": chunked + b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        "chunks of no image": chunked + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n",
        "a length below the body": line + host + LENGTH % 500 + b"\r\n" + PNG,
        "CONNECT": b"CONNECT example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "an asterisk": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a whole address": b"GET http://example/etc HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }.items():
        yield f"http: {name}", Case((message,))
    yield "more than 20 MiB in chunks", Case((chunked, *[b"100000\r\n" + bytes(1 << 20) + b"\r\n"] * 21))
    yield "more than 20 MiB", Case((line + host + LENGTH % (21 << 20) + b"\r\n", *[bytes(1 << 20)] * 21))
    yield "20 MiB of base64", post("application/json", b'{"images": [{"data": "' + b"A" * ((20 << 20) - 100) + b'"}]}')
    yield "20 MiB of emoji", post("application/json", b'{"images": [{"data": "' + "😀".encode() * 5_000_000 + b'"}]}')
    yield "20 MiB of line ends in a form", post(form()[0], f"--{B}\r\nX: y\r\n\r\n".encode() + b"\r\n" * 10_000_000)


def all_cases():
    groups = (
        *(truncated, other_content, other_types, bombs, forms, jsons, parameters, headers, routes),
        *(inference, broken_http),
    )
    cases = {}
    for group in groups:
        for name, case in group():
            assert name not in cases, name
            cases[name] = case
    return cases


def slow_cases():
    """Return requests that stop in the middle, and then trickle on or stay silent for ever."""
    line = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    return {
        "silent in its first line": b"POST /v1/cl",
        "silent in its head": line,
        "silent before its body": line + LENGTH % len(PNG) + b"\r\n",
        "silent in its body": line + LENGTH % len(PNG) + b"\r\n" + PNG[:100],
        "a length above the body": line + LENGTH % (len(PNG) + 1000) + b"\r\n" + PNG,
        "silent in its chunks": line + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        "silent in an inference": b"POST /v2/models/small/infer HTTP/1.1\r\nHost: localhost\r\n"
        + LENGTH % 9
        + b"\r\n{",
    }
