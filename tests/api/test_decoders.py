"""Decoder processes: the same pixels as in process, and an end to whatever takes too much."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serfer.api.admission import Place
from serfer.api.decoding import decoders as decoders_module
from serfer.api.decoding.decoders import DecodeLimits, Decoders
from serfer.api.decoding.fork_server import ForkServer
from serfer.core.errors import ImageError, ImageTooLargeError, PlanError, UnavailableError
from serfer.core.plan import ImageLimits, InputSizes, Preprocess, Shape
from serfer.images import Recipe, decode_image, decode_sized
from serfer.pipeline.event_loop import run
from tests.support.served import png, until

PREPROCESS = Preprocess(26, "bilinear", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3)
RECIPE = Recipe(PREPROCESS, Shape(3, 24, 24, flat=False), ImageLimits(max_pixels=1_000_000))
EXAMPLES = Path(__file__).parents[2] / "examples" / "images"


@pytest.fixture
def forks():
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def slow_bmp():
    """A BMP whose run-length decoder, written in Python, takes seconds: runs of one pixel each."""
    width, height = 1000, 1000
    runs = (b"\x01\x05" * width + b"\0\0") * height
    sizes = [54 + 1024 + len(runs), 0, 54 + 1024, 40, width, height]
    head = b"BM" + b"".join(size.to_bytes(4, "little") for size in sizes)
    rest = [(1, 2), (8, 2), (1, 4), (len(runs), 4), (0, 4), (0, 4), (256, 4), (0, 4)]
    return head + b"".join(value.to_bytes(size, "little") for value, size in rest) + bytes(1024) + runs


def decode(forks, images, recipe=RECIPE, limits=None, client="me"):
    async def once():
        pool = Decoders(limits, forks)
        try:
            names = [f"image {number}" for number in range(len(images))]
            return await pool.decode(images, names, recipe, Place(client))
        finally:
            await pool.close()

    return run(once())


def test_a_decoder_gives_the_pixels_that_decoding_in_process_gives(forks):
    images = [path.read_bytes() for path in sorted(EXAMPLES.iterdir()) if path.suffix in (".jpg", ".png")]
    decoded = decode(forks, images)
    assert np.array_equal(decoded.pixels, [decode_image(data, "x", *_parts(RECIPE)) for data in images])
    assert decoded.busy_s > 0


def test_images_of_a_plan_of_many_sizes_have_their_own_and_a_request_one(forks):
    preprocess = replace(PREPROCESS, resize=None)
    recipe = replace(RECIPE, preprocess=preprocess, sizes=InputSizes.of("8..48x8..48,multiple=8"))
    assert decode(forks, [png(48, 40), png(47, 41)], recipe).pixels.shape == (2, 40, 48, 3)
    whole = decode_sized(png(20, 9), "x", *_parts(recipe), sizes=recipe.sizes).pixels
    assert np.array_equal(decode(forks, [png(20, 9)], recipe).pixels, [whole])
    with pytest.raises(ImageError, match="image 1 is an input of 8 x 16 pixels, the first image one of 40 x 48"):
        decode(forks, [png(48, 40), png(20, 9), png(48, 40)], recipe)


def _parts(recipe):
    return recipe.preprocess, recipe.shape, recipe.limits


def test_image_errors_are_those_of_decoding_in_process(forks):
    with pytest.raises(ImageError, match="image 1 cannot be decoded"):
        decode(forks, [png(), png()[:200]])
    with pytest.raises(ImageTooLargeError, match="image 0 has 1001 x 1000 pixels, more than the 1,000,000"):
        decode(forks, [png(1001, 1000)])
    with pytest.raises(PlanError, match="takes 1 channels"):
        decode(forks, [png()], replace(RECIPE, shape=Shape(1, 24, 24, flat=False)))


def test_the_pixels_of_a_requests_images_are_bounded_together(forks):
    limits = DecodeLimits(request_pixels=3 * 48 * 40)
    assert len(decode(forks, [png()] * 3, limits=limits).pixels) == 3
    with pytest.raises(ImageTooLargeError, match="the request's images have more than the 5,760 pixels"):
        decode(forks, [png()] * 4, limits=limits)


async def test_the_processor_time_of_a_requests_images_is_bounded_together(forks, slow_bmp):
    """A decoder that takes longer is ended, and another one takes its place."""
    pool = Decoders(DecodeLimits(1, request_processor_s=0.1), forks)
    with pytest.raises(ImageTooLargeError, match=r"image 1: decoding takes more than the 0\.1 s of processor time"):
        await pool.decode([png(), slow_bmp], ["image 0", "image 1"], RECIPE, Place("me"))
    assert len((await pool.decode([png()], ["x"], RECIPE, Place("me"))).pixels) == 1
    await pool.close()


async def test_memory_is_bounded(forks, monkeypatch):
    """An image that needs more than its decoder has is refused, and the decoder goes on."""
    monkeypatch.setattr(decoders_module, "BYTES_PER_PIXEL", 0)
    monkeypatch.setattr(decoders_module, "_MARGIN_BYTES", 2 * 1024 * 1024)
    buffer = io.BytesIO()
    Image.new("RGBA", (1000, 1000)).save(buffer, "PNG")
    pool = Decoders(DecodeLimits(1), forks)
    with pytest.raises(ImageError, match=r"x takes more memory to decode|the decoder failed"):
        await pool.decode([buffer.getvalue()], ["x"], RECIPE, Place("me"))
    assert len((await pool.decode([png()], ["x"], RECIPE, Place("me"))).pixels) == 1
    await pool.close()


def busy(forks):
    for pid in children(forks._process.pid) if forks._process else ():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[11]) * 10 > os.sysconf("SC_CLK_TCK"):
            return True
    return False


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_a_request_that_is_cancelled_ends_its_decoder(forks, slow_bmp):
    pool, ended = Decoders(DecodeLimits(1), forks), []
    end = forks.end
    forks.end = lambda pid: ended.append((pid, end(pid)))
    task = asyncio.create_task(pool.decode([slow_bmp], ["slow"], RECIPE, Place("me")))
    await until(lambda: busy(forks))
    waiting = asyncio.create_task(pool.decode([png()], ["x"], RECIPE, Place("other")))
    await until(lambda: pool.slots.waiting)
    task.cancel()
    await asyncio.wait([task])
    assert [status for _, status in ended] == [-signal.SIGKILL]
    assert len((await waiting).pixels) == 1
    assert not _lives(ended[0][0])
    forks.end = end
    await pool.close()


async def test_a_request_that_is_cancelled_while_a_decoder_starts_leaves_it_to_the_next(forks):
    pool = Decoders(DecodeLimits(1), forks)
    task = asyncio.create_task(pool.decode([png()], ["x"], RECIPE, Place("me")))
    await until(lambda: pool._background)
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: pool._idle)
    first = pool._idle[0].pid
    await pool.decode([png()], ["x"], RECIPE, Place("me"))
    assert [one.pid for one in pool._idle] == [first]
    await pool.close()


def test_a_decoder_that_starts_while_its_event_loop_ends_is_not_lost(forks):
    pool, requests = Decoders(DecodeLimits(1), forks), []

    async def check():
        requests.append(asyncio.create_task(pool.decode([png()], ["x"], RECIPE, Place("me"))))
        await until(lambda: pool._background)

    run(check())  # cancels the request
    [decoder] = pool._idle
    assert decoder.alive
    pool.end()


def sockets():
    return [link for link in map(_link, Path("/proc/self/fd").iterdir()) if link.startswith("socket")]


def _link(descriptor):
    try:
        return str(descriptor.readlink())
    except OSError:  # closed meanwhile
        return ""


@pytest.mark.parametrize("image", ["slow", "cancelled"])
async def test_a_decoder_that_works_while_its_service_ends_leaves_no_socket(forks, slow_bmp, image):
    """Its request may outlast the service, as one that goes on to its end without its client does."""
    forks.launch()
    before = sorted(sockets())
    pool = Decoders(DecodeLimits(1), forks)
    task = asyncio.create_task(pool.decode([slow_bmp], ["x"], RECIPE, Place("me")))
    await until(lambda: busy(forks))
    await pool.close()
    if image == "cancelled":
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == (image == "cancelled")
    assert sorted(sockets()) == before


async def test_other_clients_images_come_between_those_of_a_large_request(forks, slow_bmp):
    pool = Decoders(DecodeLimits(1, request_processor_s=1000), forks)
    hostile = asyncio.create_task(pool.decode([slow_bmp] * 16, ["slow"] * 16, RECIPE, Place("hostile")))
    await until(lambda: pool.slots.running == pool.slots.count)
    served = await pool.decode([png()], ["x"], RECIPE, Place("alice"))
    assert len(served.pixels) == 1
    assert not hostile.done()
    hostile.cancel()
    await asyncio.wait([hostile])
    await pool.close()


@pytest.mark.killed
@pytest.mark.parametrize("who", ["decoder", "server"])
async def test_a_decoder_that_dies_while_idle_is_replaced(forks, who):
    pool = Decoders(DecodeLimits(1), forks)
    await pool.decode([png()], ["x"], RECIPE, Place("me"))
    pid = pool._idle[0].pid if who == "decoder" else forks._process.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not pool._idle[0].alive)
    await until(lambda: not pool._idle[0]._watched)  # else its end wakes the loop again and again
    assert len((await pool.decode([png()], ["x"], RECIPE, Place("me"))).pixels) == 1
    await pool.close()


@pytest.mark.killed
async def test_a_killed_decoder_is_not_an_image_error(forks, slow_bmp):
    pool = Decoders(DecodeLimits(1), forks)
    await pool.decode([png()], ["x"], RECIPE, Place("me"))
    pid = pool._idle[0].pid
    task = asyncio.create_task(pool.decode([slow_bmp], ["x"], RECIPE, Place("me")))
    await until(lambda: not pool._idle)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="killed"):
        await task
    await pool.close()


def described(pid):
    """Return a process's variables, what it writes to, and its limits."""
    place = Path(f"/proc/{pid}")
    lines = (place / "limits").read_text().splitlines()[1:]
    limits = {line[:25].strip(): line[25:].split()[0] for line in lines}
    return (place / "environ").read_bytes(), {(place / "fd" / str(number)).readlink() for number in range(3)}, limits


@pytest.mark.who_may
def test_decoders_have_no_secrets_and_write_nowhere(forks, monkeypatch):
    monkeypatch.setenv("SERFER_STORE", "redis://:hush@host/0")

    async def check():
        pool = Decoders(DecodeLimits(1), forks)
        await pool.decode([png()], ["x"], RECIPE, Place("me"))
        processes = [described(pid) for pid in (forks._process.pid, pool._idle[0].pid)]
        await pool.close()
        return processes

    described_processes = run(check())
    for variables, outputs, _ in described_processes:
        assert b"hush" not in variables
        assert outputs == {Path("/dev/null")}
    limits = described_processes[1][2]
    assert (limits["Max file size"], limits["Max core file size"]) == ("0", "0")
    assert int(limits["Max address space"]) > 0


def test_decoders_end_with_the_process_that_started_them():
    """Also those that are busy, when it is killed."""
    code = """
import asyncio, sys
from tests.api.test_decoders import RECIPE, Place
from serfer.api.decoding.decoders import Decoders
async def main():
    pool, data = Decoders(), sys.stdin.buffer.read()
    task = asyncio.create_task(pool.decode([data], ["x"], RECIPE, Place("me")))
    while not pool._background:
        await asyncio.sleep(0.001)
    while pool._background:
        await asyncio.sleep(0.001)
    print(pool._forks._process.pid, flush=True)
    await asyncio.sleep(1e6)
asyncio.run(main())
"""
    with tempfile.TemporaryFile() as given:
        given.write(png())
        given.seek(0)
        root = Path(__file__).parents[2]
        driver = subprocess.Popen([sys.executable, "-c", code], stdin=given, stdout=subprocess.PIPE, cwd=root)
        server = int(driver.stdout.readline())
        decoders = children(server)
        assert decoders
        driver.kill()
        driver.communicate()
    deadline = time.monotonic() + 60
    while any(_lives(pid) for pid in (server, *decoders)):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_fork_server_start_failure_is_reported(monkeypatch):
    monkeypatch.setattr("serfer.api.decoding.fork_server._RUN", "raise SystemExit(7)")
    server = ForkServer()
    with pytest.raises(UnavailableError, match="image decoders cannot be started: their server ended with exit code 7"):
        decode(server, [png()])
    server.close()
