"""What a request may hold: of each kind of body, the memory at its peak and the steps that the event loop takes for it.

Memory is what tracemalloc counts, in multiples of the largest body; steps are calls on the event loop's thread, since
seconds say more of the machine than of the service.
"""

import asyncio
import base64
import gzip
import sys
import threading
import tracemalloc

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient

from serfer.api.app import make_app
from serfer.api.entrypoints.serving import make_jobs
from serfer.api.routes import inference
from serfer.core.errors import OverloadedError
from serfer.settings import Settings
from tests.e2e.small import SIZE
from tests.support.served import PATIENCE, png
from tests.support.tensors import triton_input

MOST = 512 * 1024  # the largest body
IMAGES = 16
CHUNK = 64 * 1024  # as servers pass bodies on
FOLD = 8  # bodies that one request may take in memory at once, decoded and in all its forms
STEPS = 40_000  # calls of the event loop's thread for a whole request
HEAVY = {"decompress", "from_json", "loads", "a2b_base64"}  # C functions that are for other threads where there is much
INFER = "/v2/models/small/infer"
CLASSIFY = "/v1/classify"
FORM, JSON, OCTETS = "multipart/form-data; boundary=edge", "application/json", "application/octet-stream"
NOISE = np.random.default_rng(0).standard_normal((IMAGES, 3, SIZE, SIZE)).astype(np.float32)


def part(head, data=b""):
    return b"--edge\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + data + b"\r\n"


def full(unit, start=b"", end=b""):
    """Repeat a unit until a body is as large as one may be."""
    return start + unit * ((MOST - len(start) - len(end)) // len(unit)) + end


def tensor(array, *, binary):
    """Return a request of the inference protocol, and how many of its bytes are JSON."""
    return InferenceServerClient.generate_request_body(triton_input(array, binary=binary))


ZEROS = tensor(np.zeros_like(NOISE), binary=True)
FIELDS = b"".join(part(b'name="f%d"' % number) for number in range(MOST // 64))
PHOTO = png(380, 380)
PHOTOS = [png(90, 90, seed) for seed in range(IMAGES)]
BODIES = {  # how it is sent: path, Content-Type, body, bytes of JSON, coding
    "raw": (CLASSIFY, "image/png", PHOTO),
    "raw, no image": (CLASSIFY, "image/png", full(b"\x89PNG\r\n\x1a\n")),
    "form": (CLASSIFY, FORM, b"".join(part(b'name="image"', each) for each in PHOTOS) + b"--edge--"),
    "form of nothing": (CLASSIFY, FORM, full(part(b'name="image"'), end=b"--edge--")),
    "form of one head": (CLASSIFY, FORM, full(b"a", b'--edge\r\nContent-Disposition: form-data; name="')),
    "base64": (CLASSIFY, JSON, b'{"images": [{"data": "%b"}]}' % base64.b64encode(PHOTO[: MOST // 2])),
    "JSON of lists": (CLASSIFY, JSON, full(b"[],", b'{"images": [', b"[]]}")),
    "JSON, nested": (CLASSIFY, JSON, full(b"[")),
    "raw, gzip": (CLASSIFY, "image/png", gzip.compress(PHOTO), None, "gzip"),
    "tensor": (INFER, JSON, tensor(NOISE, binary=False)[0][:MOST]),
    "tensor of lists": (INFER, JSON, full(b"[],", b'{"inputs": [', b"[]]}")),
    "binary tensor": (INFER, OCTETS, *tensor(NOISE, binary=True)),
    "tensor, gzip": (INFER, JSON, gzip.compress(tensor(np.zeros_like(NOISE), binary=False)[0]), None, "gzip"),
    "binary tensor, gzip": (INFER, OCTETS, gzip.compress(ZEROS[0]), ZEROS[1], "gzip"),
    "gzip of 64 MiB": (INFER, JSON, gzip.compress(bytes(64 << 20)), None, "gzip"),
    "form of fields": (CLASSIFY, FORM, FIELDS + b"--edge--"),
    "job": ("/v1/jobs", FORM, FIELDS + b"--edge--"),
}
TOO_LARGE = {"gzip of 64 MiB", "form of nothing", "form of fields"}


@pytest.fixture
def service(service, tmp_path):
    service.jobs = make_jobs(service, Settings(api_jobs=str(tmp_path)))
    yield service
    service.decoders.end()


def settings(**more):
    return Settings(open_registry=True, api_max_body_bytes=MOST, **more)


async def answer(app, path, content_type, body, header=None, coding=None):
    """Send a request in chunks, as a server passes them on; returns its status."""
    named = {"content-type": content_type, "content-length": len(body)}
    named |= {"inference-header-content-length": header} if header else {}
    named |= {"content-encoding": coding} if coding else {}
    headers = [(name.encode(), str(value).encode()) for name, value in named.items()]
    chunks, sent = [memoryview(body)[at : at + CHUNK] for at in range(0, len(body), CHUNK)], []

    async def receive():
        await asyncio.sleep(0)
        if chunks:
            return {"type": "http.request", "body": bytes(chunks.pop(0)), "more_body": bool(chunks)}
        await asyncio.sleep(PATIENCE)  # the client waits
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    await app(scope | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {}}, receive, send)
    return sent[0]["status"]


@pytest.fixture
def counted():
    calls, heavy = [0], set()

    def profile(_frame, event, called):
        if event in ("call", "c_call"):
            calls[0] += 1
            if event == "c_call" and called.__name__ in HEAVY:
                heavy.add(called.__name__)

    yield lambda on: sys.setprofile(profile if on else None), calls, heavy
    sys.setprofile(None)


@pytest.mark.hostile
def test_every_kind_of_body_takes_bounded_memory_and_steps_of_the_event_loop(service, counted):
    app, (count, calls, heavy) = make_app(service, settings()), counted

    async def measured(path, content_type, body, *more):
        await answer(app, path, content_type, b"warm")  # what is imported and built at the first request
        calls[0] = 0
        heavy.clear()
        tracemalloc.start()
        count(True)
        try:
            status = await answer(app, path, content_type, body, *more)
        finally:
            count(False)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return status, peak, calls[0], {*heavy}

    async def every_kind():
        return {kind: await measured(*body) for kind, body in BODIES.items()}

    for kind, (status, peak, steps, on_the_loop) in asyncio.run(every_kind()).items():
        assert status in {200, 202, 400, 413, 415, 422}, kind
        assert (status == 413) == (kind in TOO_LARGE), kind
        assert peak < FOLD * MOST, kind
        assert steps < STEPS, kind
        assert not on_the_loop or len(BODIES[kind][2]) <= MOST // 2, (kind, on_the_loop)


@pytest.mark.hostile
async def test_what_waits_decoded_counts_with_the_bodies(service, monkeypatch):
    """Requests of 1 kB each that are 222 kB decoded: as many wait as the memory for bodies has room for."""
    held, go, waiting = 1_000_000, asyncio.Event(), []
    small = gzip.compress(ZEROS[0])

    async def run(_query, array):
        waiting.append(array.nbytes)
        await go.wait()
        raise OverloadedError("enough", retry_after_s=1.0)

    monkeypatch.setattr(service, "run", run)
    service.admission.bytes.most = held
    app = make_app(service, settings())

    async def send(times):
        sent = [answer(app, INFER, OCTETS, small, ZEROS[1], "gzip") for _ in range(times)]
        tasks = [asyncio.create_task(each) for each in sent]
        done = 0
        while done + len(waiting) < times:
            await asyncio.sleep(0)
            done = sum(task.done() for task in tasks)
        assert sum(waiting) + times * len(small) <= held
        assert len(waiting) >= 2
        go.set()
        return await asyncio.gather(*tasks)

    assert set(await send(12)) == {429}
    waiting.clear()
    go.clear()
    await send(2)  # all of it was given back


@pytest.mark.hostile
async def test_a_large_request_waits_for_its_decoding_no_longer_than_a_query_may_take(service, monkeypatch):
    go, begun, decode = threading.Event(), threading.Event(), inference.decode_request

    def decoded(*arguments):
        begun.set()
        go.wait(PATIENCE)
        return decode(*arguments)

    monkeypatch.setattr(inference, "decode_request", decoded)
    app = make_app(service, settings(api_deadline_ms=50))
    path, content_type, body, *more = BODIES["tensor, gzip"]
    first = asyncio.create_task(answer(app, path, content_type, body, *more))
    await asyncio.to_thread(begun.wait, PATIENCE)
    second = await answer(app, path, content_type, body, *more)
    assert not first.done()
    go.set()
    await first
    assert second == 504
