"""Images decoded in processes with limits, a bounded number at once, shared fairly between clients.

What a request's images may take is bounded together: pixels and processor time. What an image may take at once is
memory: `BYTES_PER_PIXEL` for each pixel that is accepted. A request that is cancelled, because its deadline has passed
or its client is gone, ends the decoder that works for it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from serfer.api.admission import Place, Slots
from serfer.api.decoding.decoder_process import PIXELS, REPLY_HEAD, TOO_LARGE, Job
from serfer.api.decoding.fork_server import ForkServer
from serfer.core.errors import ImageError, ImageTooLargeError, UnavailableError
from serfer.images import BYTES_PER_PIXEL, Recipe, another_size

_T = TypeVar("_T")
_log = logging.getLogger("serfer.api")
_MARGIN_BYTES = 64 * 1024 * 1024  # beyond its pixels: tables, buffers, numpy
_LEAST_S = 0.001  # the shortest time that a timer takes: 0 would be no limit
_LONGEST_ERROR = 64 * 1024


@dataclass(frozen=True)
class DecodeLimits:
    """Limits: the number of decoders, of a request's pixels and processor time, and of files that need no decoder."""

    processes: int = 2
    request_pixels: int = 96_000_000
    request_processor_s: float = 10.0
    plain_bytes: int = 1 << 18


@dataclass(frozen=True)
class DecodedImages:
    """A request's images, (N, H, W, C) uint8; how long they waited for decoders, and kept them, in seconds.

    `sizes` are those of the whole images, upright: rows and columns.
    """

    pixels: NDArray[np.uint8]
    waited_s: float
    busy_s: float
    sizes: tuple[tuple[int, int], ...] = ()


_Room = Callable[[tuple[int, int]], memoryview]
"""Returns where the pixels of an image of rows and columns belong."""


@dataclass
class _Pixels:
    """A request's pixels, `whole` (N, H, W, C), of the size that its first image becomes.

    `other` are the pixels, (H, W, C), of an image that became another size, for which the request is refused.
    """

    recipe: Recipe
    images: int
    whole: NDArray[np.uint8] = field(init=False)
    other: NDArray[np.uint8] | None = field(default=None, init=False)

    def room(self, number: int, size: tuple[int, int]) -> memoryview:
        """Return where an image's pixels belong; those of another size than the first one's are only received."""
        shape = self.recipe.input_of(size)
        rows = shape.height, shape.width, shape.channels
        if number == 0:
            self.whole = np.empty((self.images, *rows), dtype=np.uint8)
        if self.whole.shape[1:] != rows:
            self.other = np.empty(rows, dtype=np.uint8)
            return self.other.data.cast("B")
        return memoryview(self.whole[number].reshape(-1))


class _LostError(Exception):
    """A decoder ended while it worked."""


class _Decoder:
    """A decoder process and the socket to it; for one event loop, a job at a time."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection

    @property
    def alive(self) -> bool:
        try:
            self.connection.recv(1, socket.MSG_PEEK)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    async def decode(self, job: Job, data: bytes, room: _Room) -> tuple[tuple[int, int], float]:
        """Decode a file into `room` and return its rows and columns, and processor seconds; raises as decode_image."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self.connection, job.pack(data))
            await loop.sock_sendall(self.connection, data)
        except OSError:  # it has ended; its output does not matter
            raise _LostError from None
        reply = memoryview(bytearray(REPLY_HEAD.size))
        await self._receive(reply)
        kind, rows, columns, processor_s, size = REPLY_HEAD.unpack(reply)
        if kind == PIXELS and not rows * columns:
            raise _LostError
        out = room((rows, columns)) if kind == PIXELS else memoryview(bytearray(min(size, _LONGEST_ERROR)))
        if size != len(out):
            raise _LostError
        await self._receive(out)
        if kind == PIXELS:
            return (rows, columns), processor_s
        raise (ImageTooLargeError if kind == TOO_LARGE else ImageError)(str(out, "utf-8"))

    async def _receive(self, into: memoryview) -> None:
        while into:
            try:
                count = await asyncio.get_running_loop().sock_recv_into(self.connection, into)
            except OSError:
                count = 0
            if not count:
                raise _LostError
            into = into[count:]


class Decoders:
    """The decoders of one service; for one event loop. Without `forks` it has a fork server of its own."""

    def __init__(self, limits: DecodeLimits | None = None, forks: ForkServer | None = None) -> None:
        self.limits = limits or DecodeLimits()
        self.plain_limits = self.limits.plain_bytes, self.limits.request_pixels
        self.slots = Slots(self.limits.processes)
        self._forks = forks or ForkServer()
        self._own_forks = forks is None
        self._idle: list[_Decoder] = []
        self._started: set[_Decoder] = set()  # by threads, and not yet with the request that waits for one
        self._closed = False
        self._background: set[asyncio.Future[Any]] = set()

    def launch(self) -> None:
        """Start the fork server's imports, which the first image would wait for."""
        self._forks.launch()

    async def decode(
        self, images: Sequence[bytes], names: Sequence[str], recipe: Recipe, place: Place
    ) -> DecodedImages:
        """Decode the images of a request that has a place, one after the other, in turn with those of other requests.

        Raises ImageError and ImageTooLargeError that name the image, PlanError as decode_image does, Problem 429 where
        the place is lost, UnavailableError where there are no decoders.
        """
        pixels = _Pixels(recipe, len(images))
        pixels_left, processor_s = self.limits.request_pixels, self.limits.request_processor_s
        waited_s, busy_s, sizes = 0.0, 0.0, list[tuple[int, int]]()
        for number, (data, name) in enumerate(zip(images, names, strict=True)):
            async with self.slots.hold(place, served=number) as turn:
                job = Job(
                    name=name,
                    recipe=recipe,
                    pixels_left=pixels_left,
                    request_pixels=self.limits.request_pixels,
                    processor_s=max(processor_s, _LEAST_S),
                    memory_bytes=BYTES_PER_PIXEL * recipe.limits.max_pixels + _MARGIN_BYTES,
                )
                size, used_s = await self._run(job, data, partial(pixels.room, number))
                if pixels.other is not None:
                    raise another_size(name, pixels.other.shape, pixels.whole.shape[1:])
            waited_s, busy_s = waited_s + turn.waited_s, busy_s + self.slots.ended - turn.since
            pixels_left, processor_s = pixels_left - prod(size), processor_s - used_s
            sizes.append(size)
        return DecodedImages(pixels.whole, waited_s, busy_s, tuple(sizes))

    async def _run(self, job: Job, data: bytes, room: _Room) -> tuple[tuple[int, int], float]:
        decoder = await self._idle_one() or await self._start()
        try:
            done = await decoder.decode(job, data, room)
        except _LostError:
            raise self._lost(job.name, await self._end(decoder)) from None
        except ImageError:
            self._keep(decoder)
            raise
        except BaseException:
            await self._end(decoder)
            raise
        self._keep(decoder)
        return done

    def _keep(self, decoder: _Decoder) -> None:
        if self._closed:
            decoder.connection.close()
        else:
            self._idle.append(decoder)

    async def _idle_one(self) -> _Decoder | None:
        while self._idle:
            decoder = self._idle.pop()
            if decoder.alive:
                return decoder
            await self._end(decoder)
        return None

    async def _start(self) -> _Decoder:
        ours, theirs = socket.socketpair()
        ours.settimeout(0)

        def start() -> _Decoder:
            try:
                with theirs:
                    decoder = _Decoder(self._forks.start(theirs), ours)
                self._started.add(decoder)
                self._check_open()
            except BaseException:
                ours.close()
                raise
            return decoder

        starting = self._in_a_thread(start)
        try:
            decoder = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._keep_unwanted)
            raise
        self._started.discard(decoder)
        return decoder

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("image decoders are closed")

    def _keep_unwanted(self, starting: asyncio.Future[_Decoder]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._started.discard(starting.result())
            self._keep(starting.result())

    async def _end(self, decoder: _Decoder) -> int | None:
        """Kill a decoder and return its exit status; the slot is not free before it has given its memory back."""

        def end() -> int | None:
            try:
                return self._forks.end(decoder.pid)
            finally:
                decoder.connection.close()

        return await asyncio.shield(self._in_a_thread(end))

    def _lost(self, name: str, status: int | None) -> Exception:
        if status is None or status == -signal.SIGKILL:  # not by us: for want of memory, or by hand
            return UnavailableError("an image decoder was killed")
        if status == -signal.SIGPROF:
            return ImageTooLargeError(
                f"{name}: decoding takes more than the {self.limits.request_processor_s:g} s of processor time that a "
                f"request may take (SERFER_API_DECODE_CPU_S): send fewer or smaller images"
            )
        _log.warning("an image decoder ended with exit status %s", status)
        return ImageError(f"{name} cannot be decoded: the decoder failed")

    def _in_a_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Start work in a thread as a future, not a task: an event loop that ends cancels its tasks."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._background.add(future)  # the event loop keeps no reference
        future.add_done_callback(self._background.discard)
        return future

    async def close(self) -> None:
        """End every decoder; call it when no request runs."""
        if self._background:
            await asyncio.wait(self._background)
        for decoder in self._idle:
            await asyncio.to_thread(self._forks.end, decoder.pid)
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """End the fork server, and with it every decoder, where no event loop runs any more; a second call is fine."""
        self._closed = True
        for decoder in (*self._idle, *self._started):
            decoder.connection.close()
        self._idle.clear()
        if self._own_forks:
            self._forks.close()
