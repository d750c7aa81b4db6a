"""`serfer bench service profile`: which part a function belongs to, and all of it on a small network."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import serfer
from serfer.cli.main import app
from serfer_bench.serving.profile import counted, part_of, results

HERE = Path(serfer.__file__).parent


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("/venv/lib/python3.11/site-packages/h11/_connection.py", "uvicorn and h11"),
        (f"{HERE}/api/http/protocol.py", "uvicorn and h11"),
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
    calls = [
        ("/usr/lib/python3.11/asyncio/tasks.py", "create_task", 8, 0.004),
        ("/x/a.py", "f", 4, 0.012),
    ]
    counts = counted("local", 4, 0.024, calls)
    assert (counts.calls["the event loop"], counts.calls["Python's library"]) == (2, 1)
    rows = {row[0]: row[1:] for row in results([counts], "net").tables[0].body}
    assert rows["the event loop"] == ("2", "50%")
    assert rows["Python's library"] == ("1", "50%")
    assert rows["all"] == ("3", "")


@pytest.mark.slow
def test_a_query_is_counted_with_both_kinds_of_workers():
    done = CliRunner().invoke(app, ["bench", "service", "profile", "--size", "64", "--queries", "20", "--json"])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    kinds = {record["workers"]: record for record in records if "workers" in record}
    assert set(kinds) == {"inprocess", "local"}
    for record in kinds.values():
        assert 500 < sum(record["calls"].values()) < 10_000
        assert record["seconds"]["the event loop"] > 0
    assert (
        kinds["inprocess"]["calls"]["the local Lambda service"]
        == 0
        < kinds["local"]["calls"]["the local Lambda service"]
    )
