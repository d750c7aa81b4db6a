"""Connections are accepted alike on both event loops, also where the process has no descriptors left."""

import asyncio
import errno
import logging
import socket

import pytest

from serfer.local import acceptor
from serfer.local.acceptor import Acceptor, Shortage
from serfer.pipeline.event_loop import new_event_loop

PATIENCE = 10.0
SAID = "connections wait to be accepted: Too many open files (raise the limit: ulimit -n)"


class Greeter(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "ours"])
def play(request):
    """Run a scene with an acceptor on a loop of each kind."""

    def played(scene):
        async def run():
            listener = socket.create_server(("127.0.0.1", 0))
            accepting = Acceptor(listener, Greeter)
            asyncio.get_running_loop().set_exception_handler(lambda _, context: pytest.fail(str(context)))
            try:
                await asyncio.wait_for(scene(accepting, listener.getsockname()), PATIENCE)
            finally:
                accepting.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(run())

    return played


@pytest.fixture
def short(monkeypatch):
    """Have no descriptors for the next so many connections; yields the tries."""
    tries, accept = [], socket.socket.accept

    def refuse(count):
        def short(listener):
            tries.append(listener)
            if len(tries) <= count:
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", short)
        return tries

    return refuse


async def greeted(address):
    reader, writer = await asyncio.open_connection(*address)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_without_descriptors_connections_wait_and_the_log_says_so_once(play, short, monkeypatch, caplog):
    monkeypatch.setattr(acceptor, "PAUSE_S", 0.0)
    tries = short(5)

    async def scene(_, address):
        assert await greeted(address) == b"hello"
        assert await greeted(address) == b"hello"

    play(scene)
    assert len(tries) >= 7
    assert [record.getMessage() for record in caplog.records] == [SAID]


def test_closing_while_accepting_pauses_leaves_nothing(play, short):
    tries = short(1000)

    async def scene(accepting, address):
        with socket.create_connection(address):
            while not tries:  # noqa: ASYNC110 - it says nothing of it
                await asyncio.sleep(0)
            accepting.close()
            accepting.close()
            assert accepting._pause.cancelled()

    play(scene)


def test_a_closed_port_refuses_and_a_connection_that_was_accepted_before_goes_on(play):
    async def scene(accepting, address):
        with socket.create_connection(address, PATIENCE) as client:
            while not accepting._starting:  # noqa: ASYNC110 - same
                await asyncio.sleep(0)
            accepting.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)
            assert await asyncio.to_thread(client.recv, 5) == b"hello"

    play(scene)


def test_connections_that_start_are_waited_for(play):
    async def scene(accepting, address):
        with socket.create_connection(address, PATIENCE):
            while not accepting._starting:  # noqa: ASYNC110 - same
                await asyncio.sleep(0)
            starting = [*accepting._starting]
            accepting.close()
            await accepting.settled()
            assert all(task.done() for task in starting)
            await accepting.settled()  # there are none

    play(scene)


def test_a_shortage_is_logged_once_in_ten_seconds(caplog):
    caplog.set_level(logging.WARNING)
    times = iter([0.0, 0.0, 1.0, 9.9, 10.0, 10.0])
    shortage = Shortage(lambda: next(times))
    for _ in range(4):
        shortage.log(OSError(errno.EMFILE, "Too many open files"))
    assert [record.getMessage() for record in caplog.records] == [SAID] * 2
