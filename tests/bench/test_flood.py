"""Clients of `serfer bench service flood` against a server that a test scripts: what they count, and that they end."""

import asyncio

import pytest

from serfer_bench.serving import flood
from serfer_bench.serving.flood import Flood

PATIENCE = 30.0


def reply(status, *lines):
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} X", *lines, "Content-Length: 2", "", "ok")).encode()


def serving(check, *replies):
    """Run `check(url)` beside a server that gives these replies in turn, the last one for ever; None: it hangs up."""

    async def run():
        left = list(replies)

        async def answer(reader, writer):
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-L")), 0)
                    await reader.readexactly(length)
                    response = left.pop(0) if len(left) > 1 else left[0]
                    if response is None:
                        break
                    writer.write(response)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await check(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


def outcome(**changes):
    fine = Flood(500, 20.0, 5000.0, 10.0, {200: 180, 429: 5000, 504: 3}, 180, 1.0, 2.0, 1.0, 2.0, 80, 0, 900.0, 1.5)
    return Flood(**{**vars(fine), **changes})


def test_every_reply_counts_and_so_do_connections_that_were_closed_without_one():
    async def check(url):
        return await flood._run_clients(url, flood._request(b"image", 1000), 1, 0.3)

    replies = serving(check, reply(200), reply(429, "Connection: close"), None, reply(200))
    counts = {status: len(ms) for status, ms in replies.ms.items()}
    assert (counts[429], counts[0]) == (1, 1)
    assert counts[200] > 1


def test_missed_criteria_are_named():
    assert outcome().faults() == []
    assert "2 of 180 answers came after the deadline" in outcome(in_time=178).faults()
    assert (
        "7.5 answers a second in time, of 10.0 without the flood" in outcome(statuses={200: 150}, in_time=150).faults()
    )
    assert "other statuses: {0: 2, 503: 1}" in outcome(statuses={0: 2, 200: 180, 503: 1}).faults()
    assert "1 of 80 health checks failed" in outcome(failed_checks=1).faults()
    assert "as fast as before never" in outcome(normal_after_s=None).faults()
    assert "as fast as before after 2.5 s" in outcome(normal_after_s=2.5).faults()


@pytest.mark.parametrize("answer", [reply(503), reply(429, "Retry-After: 0"), None])
def test_a_service_that_never_recovers_ends_the_benchmark(answer):
    async def check(url):
        request = flood._request(b"image", 1000)
        return await flood.recovery_s(lambda: flood._query_ms(url, request), 1000.0, give_up_s=0.01)

    assert serving(check, answer) is None
