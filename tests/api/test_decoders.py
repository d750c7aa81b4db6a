"""Decoder processes: the same pixels as in process, and an end to whatever takes too much."""

import asyncio
import io
import os
import signal
from contextlib import asynccontextmanager
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
from serfer.images import Recipe, decode_image
from serfer.pipeline.event_loop import run
from tests.support.processes import said_before_kill
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


@asynccontextmanager
async def pool_of(forks, **limits):
    pool = Decoders(DecodeLimits(1, **limits), forks)
    try:
        yield pool
    finally:
        await pool.close()


def decode(forks, images, recipe=RECIPE, **limits):
    async def once():
        async with pool_of(forks, **limits) as pool:
            return await pool.decode(images, [f"image {number}" for number in range(len(images))], recipe, Place("me"))

    return run(once())


def start(pool, image, client="me"):
    return asyncio.create_task(pool.decode([image], ["x"], RECIPE, Place(client)))


async def check_decodes(pool, client="me"):
    assert len((await start(pool, png(), client)).pixels) == 1


def test_a_decoder_gives_the_pixels_that_decoding_in_process_gives(forks):
    images = [path.read_bytes() for path in sorted(EXAMPLES.iterdir()) if path.suffix in (".jpg", ".png")]
    decoded = decode(forks, images)
    assert np.array_equal(decoded.pixels, [decode_image(data, "x", RECIPE).pixels for data in images])
    assert decoded.busy_s > 0


def test_images_of_a_plan_of_many_sizes_have_their_own_and_a_request_one(forks):
    preprocess = replace(PREPROCESS, resize=None)
    recipe = replace(RECIPE, preprocess=preprocess, sizes=InputSizes.of("8..48x8..48,multiple=8"))
    assert decode(forks, [png(48, 40), png(47, 41)], recipe).pixels.shape == (2, 40, 48, 3)
    whole = decode_image(png(20, 9), "x", recipe).pixels
    assert np.array_equal(decode(forks, [png(20, 9)], recipe).pixels, [whole])
    with pytest.raises(ImageError, match="image 1 is an input of 8 x 16 pixels, the first image one of 40 x 48"):
        decode(forks, [png(48, 40), png(20, 9), png(48, 40)], recipe)


def test_image_errors_are_those_of_decoding_in_process(forks):
    with pytest.raises(ImageError, match="image 1 cannot be decoded"):
        decode(forks, [png(), png()[:200]])
    with pytest.raises(ImageTooLargeError, match="image 0 has 1001 x 1000 pixels, more than the 1,000,000"):
        decode(forks, [png(1001, 1000)])
    with pytest.raises(PlanError, match="takes 1 channels"):
        decode(forks, [png()], replace(RECIPE, shape=Shape(1, 24, 24, flat=False)))


def test_the_pixels_of_a_requests_images_are_bounded_together(forks):
    most = 3 * 48 * 40
    assert len(decode(forks, [png()] * 3, request_pixels=most).pixels) == 3
    with pytest.raises(ImageTooLargeError, match="the request's images have more than the 5,760 pixels"):
        decode(forks, [png()] * 4, request_pixels=most)


async def test_the_processor_time_of_a_requests_images_is_bounded_together(forks, slow_bmp):
    """A decoder that takes longer is ended, and another one takes its place."""
    async with pool_of(forks, request_processor_s=0.1) as pool:
        with pytest.raises(ImageTooLargeError, match=r"image 1: decoding takes more than the 0\.1 s of processor time"):
            await pool.decode([png(), slow_bmp], ["image 0", "image 1"], RECIPE, Place("me"))
        await check_decodes(pool)


async def test_memory_is_bounded(forks, monkeypatch):
    """An image that needs more than its decoder has is refused, and the decoder goes on."""
    monkeypatch.setattr(decoders_module, "BYTES_PER_PIXEL", 0)
    monkeypatch.setattr(decoders_module, "_MARGIN_BYTES", 2 * 1024 * 1024)
    buffer = io.BytesIO()
    Image.new("RGBA", (1000, 1000)).save(buffer, "PNG")
    async with pool_of(forks) as pool:
        with pytest.raises(ImageError, match=r"x takes more memory to decode|the decoder failed"):
            await start(pool, buffer.getvalue())
        await check_decodes(pool)


def busy(forks):
    for pid in children(forks._process.pid) if forks._process else ():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if int(fields[11]) * 10 > os.sysconf("SC_CLK_TCK"):
            return True
    return False


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_a_request_that_is_cancelled_ends_its_decoder(forks, slow_bmp, monkeypatch):
    ended, end = [], forks.end
    monkeypatch.setattr(forks, "end", lambda pid: ended.append(end(pid)))
    async with pool_of(forks) as pool:
        task = start(pool, slow_bmp)
        await until(lambda: busy(forks))
        waiting = start(pool, png(), "other")
        await until(lambda: pool.slots.waiting)
        task.cancel()
        await asyncio.wait([task])
        assert ended == [-signal.SIGKILL]
        assert len((await waiting).pixels) == 1


async def test_a_request_that_is_cancelled_while_a_decoder_starts_leaves_it_to_the_next(forks):
    async with pool_of(forks) as pool:
        task = start(pool, png())
        await until(lambda: pool._background)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: pool._idle)
        first = pool._idle[0].pid
        await check_decodes(pool)
        assert [decoder.pid for decoder in pool._idle] == [first]


def test_a_decoder_that_starts_while_its_event_loop_ends_is_not_lost(forks):
    pool, requests = Decoders(DecodeLimits(1), forks), []

    async def check():
        requests.append(start(pool, png()))
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
    async with pool_of(forks) as pool:
        task = start(pool, slow_bmp)
        await until(lambda: busy(forks))
    if image == "cancelled":
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == (image == "cancelled")
    assert sorted(sockets()) == before


async def test_other_clients_images_come_between_those_of_a_large_request(forks, slow_bmp):
    async with pool_of(forks, request_processor_s=1000) as pool:
        hostile = asyncio.create_task(pool.decode([slow_bmp] * 16, ["slow"] * 16, RECIPE, Place("hostile")))
        await until(lambda: pool.slots.running == pool.slots.count)
        await check_decodes(pool, "alice")
        assert not hostile.done()
        hostile.cancel()
        await asyncio.wait([hostile])


@pytest.mark.killed
@pytest.mark.parametrize("who", ["decoder", "server"])
async def test_a_decoder_that_dies_while_idle_is_replaced(forks, who):
    async with pool_of(forks) as pool:
        await check_decodes(pool)
        os.kill(pool._idle[0].pid if who == "decoder" else forks._process.pid, signal.SIGKILL)
        await until(lambda: not pool._idle[0].alive)
        await check_decodes(pool)


@pytest.mark.killed
async def test_decoders_outlive_a_signal_to_all_processes_of_a_service_that_drains(forks):
    async with pool_of(forks) as pool:
        await check_decodes(pool)
        pid = pool._idle[0].pid
        for process in (pid, forks._process.pid):
            os.kill(process, signal.SIGTERM)
        await check_decodes(pool)
        assert pool._idle[0].pid == pid


@pytest.mark.killed
async def test_a_killed_decoder_is_not_an_image_error(forks, slow_bmp):
    async with pool_of(forks) as pool:
        await check_decodes(pool)
        pid = pool._idle[0].pid
        task = start(pool, slow_bmp)
        await until(lambda: not pool._idle)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="killed"):
            await task


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
        async with pool_of(forks) as pool:
            await check_decodes(pool)
            return [described(pid) for pid in (forks._process.pid, pool._idle[0].pid)]

    described_processes = run(check())
    for variables, outputs, _ in described_processes:
        assert b"hush" not in variables
        assert outputs == {Path("/dev/null")}
    limits = described_processes[1][2]
    assert (limits["Max file size"], limits["Max core file size"]) == ("0", "0")
    assert int(limits["Max address space"]) > 0


def test_decoders_end_with_the_process_that_started_them(slow_bmp, tmp_path):
    """Also one that is busy, when it is killed."""
    code = """
import asyncio, sys
from pathlib import Path
from tests.api.test_decoders import busy, children, start, until
from serfer.api.decoding.decoders import Decoders
async def main():
    pool = Decoders()
    task = start(pool, Path(sys.argv[1]).read_bytes())
    await until(lambda: busy(pool._forks))
    print(pool._forks._process.pid, *children(pool._forks._process.pid), flush=True)
    await asyncio.sleep(1e6)
asyncio.run(main())
"""
    (tmp_path / "slow.bmp").write_bytes(slow_bmp)
    words = said_before_kill(code, str(tmp_path / "slow.bmp"), PYTHONPATH=str(Path(__file__).parents[2]))
    assert len(words) > 1  # the fork server and a decoder


def test_a_fork_server_start_failure_is_reported(monkeypatch):
    monkeypatch.setattr("serfer.api.decoding.fork_server._RUN", "raise SystemExit(7)")
    server = ForkServer()
    with pytest.raises(UnavailableError, match="image decoders cannot be started: their server ended with exit code 7"):
        decode(server, [png()])
    server.close()
