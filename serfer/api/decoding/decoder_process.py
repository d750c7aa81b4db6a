"""Image decoders as processes, which have limits and can be killed, as a thread cannot.

    driver ── control socket ──▶ fork server ── fork ──▶ decoder
       └──────────── a socket of its own ──────────────────┘     jobs in, pixels out

The fork server imports what decoding needs once, so that another decoder takes milliseconds. Both end with the driver.
This module is what runs in them; fork_server.py and decoders.py are the driver's side.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import ImageError, ImageTooLargeError
from serfer.images import Recipe, decode_image
from serfer.local.die_with_parent import die_with
from serfer.system import address_space_bytes

START: Final = b"start"
CONTROL: Final = struct.Struct("<q")  # to the fork server: a process to end; from it: a process id or exit status
UNKNOWN: Final = 1 << 32  # the exit status of a process that the fork server did not start
JOB_HEAD: Final = struct.Struct("<IIQQQdQ")
"""Bytes of the recipe in JSON, of the name and of the file; then a job's four numbers in their order."""
REPLY_HEAD: Final = struct.Struct("<BIIdI")  # kind, rows and columns, seconds of processor time, bytes that follow
PIXELS, ERROR, TOO_LARGE = range(3)
_LONGEST_MESSAGE = 64
_RECIPES = 64  # of plans that are served


@dataclass(frozen=True, slots=True)
class Job:
    """A file to decode, and what that may take.

    `pixels_left` of `request_pixels` is what the request's files may still have; `processor_s` is a time, and
    `memory_bytes` a size beyond what an idle decoder takes and the file.
    """

    name: str
    recipe: Recipe
    pixels_left: int
    request_pixels: int
    processor_s: float
    memory_bytes: int

    def pack(self, data: bytes) -> bytes:
        recipe, name = _pack_recipe(self.recipe), self.name.encode(errors="surrogatepass")
        limits = self.pixels_left, self.request_pixels, self.processor_s, self.memory_bytes
        return JOB_HEAD.pack(len(recipe), len(name), len(data), *limits) + recipe + name


@lru_cache(_RECIPES)
def _pack_recipe(recipe: Recipe) -> bytes:
    return json.dumps(unstructure(recipe)).encode()


@lru_cache(_RECIPES)
def _unpack_recipe(recipe: bytes) -> Recipe:
    return structure(Recipe, json.loads(recipe), "recipe")


def run_fork_server(descriptor: int) -> None:
    """Start and end decoders as the driver asks, until its end of the socket is closed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # to all processes of the service: what runs is decoded to its end
    started: set[int] = set()
    with socket.socket(fileno=descriptor) as control:
        while True:
            message, sockets, _, _ = socket.recv_fds(control, _LONGEST_MESSAGE, 1)
            if not message:
                return
            if message == START:
                value = _start(sockets[0], control)
                started.add(value)
            else:
                [pid] = CONTROL.unpack(message)
                value = _end(pid) if pid in started else UNKNOWN
                started.discard(pid)
            control.send(CONTROL.pack(value))


def _start(descriptor: int, control: socket.socket) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        die_with(parent)
        control.close()
        _serve(socket.socket(fileno=descriptor))
    finally:
        os._exit(1)


def _end(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)  # one that has ended is not reaped yet: the id is still its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _serve(driver: socket.socket) -> None:
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    idle_bytes = address_space_bytes()
    while head := driver.recv(JOB_HEAD.size, socket.MSG_WAITALL):
        of_recipe, of_name, size, *limits = JOB_HEAD.unpack(head)
        described = driver.recv(of_recipe + of_name, socket.MSG_WAITALL)
        name = described[of_recipe:].decode(errors="surrogatepass")
        job = Job(name, _unpack_recipe(described[:of_recipe]), *limits)
        data = driver.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            return
        if idle_bytes is not None:
            _set_memory(idle_bytes + size + job.memory_bytes)
        driver.sendall(_reply(job, data))


def _set_memory(limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _reply(job: Job, data: bytes) -> bytes:
    """Decode a file; where that takes more processor time than the job allows, SIGPROF ends this process."""
    size, started = (0, 0), time.process_time()

    def count(pixels: int) -> None:
        if pixels > job.pixels_left:
            raise ImageTooLargeError(
                f"the request's images have more than the {job.request_pixels:,} pixels that are accepted together "
                "(SERFER_API_MAX_REQUEST_PIXELS): send fewer or smaller ones"
            )

    signal.setitimer(signal.ITIMER_PROF, job.processor_s)
    try:
        image = decode_image(data, job.name, job.recipe, on_size=count)
        kind, size, body = PIXELS, image.size, image.pixels.tobytes()
    except ImageTooLargeError as error:
        kind, body = TOO_LARGE, str(error).encode(errors="backslashreplace")
    except ImageError as error:
        kind, body = ERROR, str(error).encode(errors="backslashreplace")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return REPLY_HEAD.pack(kind, *size, time.process_time() - started, len(body)) + body
