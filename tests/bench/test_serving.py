"""Loads of the service: clients that never wait, a burst that moves to an instance, and a query by part."""

import asyncio
import json
from pathlib import Path

import pytest

import serfer
from serfer_bench.core.workload import Sent
from serfer_bench.serving import flood
from serfer_bench.serving.flood import Flood
from serfer_bench.serving.profile import counted, part_of, results
from serfer_bench.serving.route import Experiment, _steps, outcome
from tests.bench.running import rows
from tests.e2e.conftest import serfer_, start  # noqa: F401 - fixtures
from tests.e2e.test_routing import scenario  # noqa: F401 - same

PATIENCE = 30.0


def reply(status, *lines):
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} X", *lines, "Content-Length: 2", "", "ok")).encode()


def serving(check, *replies):
    """Run `check(url)` beside a server that gives these replies in turn, the last one for ever; None: it hangs up."""

    async def run():
        left = list(replies)

        async def answer(reader, writer):
            try:
                while await reader.readuntil(b"\r\n\r\n"):  # and the body of the request before
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


def flooded(**changes):
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
    assert flooded().faults() == []
    assert "2 of 180 answers came after the deadline" in flooded(in_time=178).faults()
    fault = "7.5 answers a second in time, of 10.0 without the flood"
    assert fault in flooded(statuses={200: 150}, in_time=150).faults()
    assert "other statuses: {0: 2, 503: 1}" in flooded(statuses={0: 2, 200: 180, 503: 1}).faults()
    assert "1 of 80 health checks failed" in flooded(failed_checks=1).faults()
    assert "as fast as before never" in flooded(normal_after_s=None).faults()
    assert "as fast as before after 2.5 s" in flooded(normal_after_s=2.5).faults()


@pytest.mark.parametrize("answer", [reply(503), reply(429, "Retry-After: 0"), None])
def test_a_service_that_never_recovers_ends_the_benchmark(answer):
    async def check(url):
        request = flood._request(b"image", 1000)
        return await flood.recovery_s(lambda: flood._query_ms(url, request), 1000.0, give_up_s=0.01)

    assert serving(check, answer) is None


EXPERIMENT = Experiment(rate=1.0, seconds=4.0, after_s=2.0, step_s=2.0, kill_s=None, warm=0, options=())


def end(due, latency, outcome):
    return Sent(0, due, due, due + latency, result=outcome)


def test_ends_are_counted_in_the_step_of_their_arrival():
    ends = [
        end(0.1, 0.010, "serverless"),
        end(1.9, 5.000, "serverless"),
        end(2.0, 0.030, "gpu"),
        end(2.5, 0.001, "refused"),
        end(3.0, 0.001, "500"),
        end(3.0, 0.001, None),
        end(3.1, 0.001, "wrong"),
    ]
    instances = [(0.0, {"wanted": 0}), (1.5, {"wanted": 1}), (2.5, {"wanted": 1, "on": 1}), (4.5, {})]
    first, second, last = _steps(ends, instances, EXPERIMENT)
    assert (first.queries, first.serverless, first.gpu, first.wanted, first.on) == (2, 2, 0, 1, 0)
    assert first.p50_ms == pytest.approx(2505.0)
    assert (second.gpu, second.refused, second.wrong, second.failed) == (1, 1, 1, 2)
    assert (second.p50_ms, second.on) == (pytest.approx(30.0), 1)
    assert (last.second, last.queries, last.shown["p50 ms"]) == (4.0, 0, "")


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (200, {"target": "gpu", "images": [{"predictions": [{"index": 3}]}]}, "gpu"),
        (200, {"target": "gpu", "images": [{"predictions": [{"index": 4}]}]}, "wrong"),
        (429, {}, "refused"),
        (503, {}, "503"),
    ],
)
def test_an_answer_is_its_target_where_it_is_right(status, answer, expected):
    assert outcome(status, answer, 3) == expected


@pytest.mark.killed
@pytest.mark.slow
def test_a_burst_moves_to_an_instance_and_no_query_is_lost_when_it_dies(serfer_, plan, scenario):  # noqa: F811
    result = serfer_(
        *("bench", "route", "--plan", plan, "--workers", "inprocess", "--scenario", scenario, "--json"),
        *("--rps", "10", "--seconds", "30", "--kill-s", "12"),
    )
    assert result.code == 0, result.err
    steps = [json.loads(line) for line in result.lines]
    assert sum(row["queries"] for row in steps) == sum(row["serverless"] + row["gpu"] for row in steps) == 300
    assert steps[0]["serverless"] > 0
    assert sum(row["gpu"] for row in steps) > 0


HERE = Path(serfer.__file__).parent


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("/venv/lib/python3.11/site-packages/uvicorn/config.py", "HTTP"),
        (f"{HERE}/api/http/protocol.py", "HTTP"),
        (f"{HERE}/api/decoding/decoders.py", "handing images to the decoder's process"),
        (f"{HERE}/api/http/body.py", "our routes and middleware"),
        (f"{HERE}/drivers/lambda_http.py", "the client of Lambda"),
        (f"{HERE}/drivers/push.py", "the driver and its run machine"),
        ("/usr/lib/python3.11/asyncio/events.py", "the event loop"),
        (f"{HERE}/pipeline/event_loop.py", "the event loop"),
        (f"{HERE}/pipeline/query.py", "the pipeline and the report"),
        ("/usr/lib/python3.11/contextlib.py", "Python's library"),
        ("<string>", "Python's library"),
    ],
)
def test_a_function_belongs_to_the_part_of_its_file(file, part):
    assert part_of(file) == part


def test_calls_are_those_of_a_query_and_what_they_leave_of_its_time_is_the_loops():
    calls = [("/usr/lib/python3.11/asyncio/tasks.py", "create_task", 8, 0.004), ("/x/a.py", "f", 4, 0.012)]
    counts = counted("local", 4, 0.024, calls)
    assert (counts.calls["the event loop"], counts.calls["Python's library"]) == (2, 1)
    body = {row[0]: row[1:] for row in results([counts], "net").tables[0].body}
    assert (body["the event loop"], body["Python's library"], body["all"]) == (("2", "50%"), ("1", "50%"), ("3", ""))


@pytest.mark.slow
def test_a_query_is_counted_with_both_kinds_of_workers():
    records = rows("bench", "service", "profile", "--size", 64, "--queries", 20)
    kinds = {record["workers"]: record for record in records if "workers" in record}
    assert set(kinds) == {"inprocess", "local"}
    for record in kinds.values():
        assert 500 < sum(record["calls"].values()) < 10_000
        assert record["seconds"]["the event loop"] > 0
    assert [kinds[kind]["calls"]["the local Lambda service"] > 0 for kind in ("inprocess", "local")] == [False, True]
