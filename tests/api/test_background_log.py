import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from serfer.api.observability.background_log import BackgroundHandler
from serfer.api.observability.logs import JsonFormatter
from tests.support.served import PATIENCE

LINE = "x" * 1000
MANY = 500  # lines: more than a pipe and the writer take


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def within_patience(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


@pytest.fixture
def reader(pipe):
    with os.fdopen(os.dup(pipe[0]), "r") as file:
        yield lambda: file.readline().rstrip("\n")


def lines_and_losses(reader, losses):
    """Read all of MANY lines that were kept, and what is said of the rest, in one line or in several."""
    kept, said = [], []
    while len(kept) + sum(losses(line) for line in said) < MANY:
        line = reader()
        (said if losses(line) else kept).append(line)
    assert len(kept) + sum(map(losses, said)) == MANY
    return kept, said


def test_what_waits_is_written_before_an_end(pipe):
    writer = BackgroundHandler(pipe[1])
    for number in range(30):
        writer.enqueue(str(number))
    writer.flush()
    assert os.read(pipe[0], 65536).decode().split() == [str(number) for number in range(30)]


def test_lines_go_to_what_was_given_and_never_to_what_has_its_number_later(pipe, reader):
    writer = BackgroundHandler(pipe[1])
    other, into_other = os.pipe()
    os.dup2(into_other, pipe[1])  # as whoever opens a file after it was closed may get
    writer.enqueue(LINE)
    assert reader() == LINE
    writer.close()
    assert reader() == ""  # nobody writes any more
    os.close(into_other)
    os.close(pipe[1])
    assert os.read(other, 1) == b""
    os.close(other)


def test_a_reader_that_is_gone_keeps_no_caller_waiting(pipe):
    os.close(pipe[0])
    writer = BackgroundHandler(pipe[1])
    for _ in range(MANY):
        writer.enqueue(LINE)
    assert within_patience(writer.flush)


def test_a_descriptor_that_does_not_block_is_waited_for(pipe, reader):
    os.set_blocking(pipe[1], False)
    writer = BackgroundHandler(pipe[1])
    for _ in range(MANY):
        writer.enqueue(LINE)
    assert [reader() for _ in range(MANY)] == [LINE] * MANY


def test_lines_that_are_not_read_keep_no_caller_waiting_and_are_counted(pipe, reader):
    handler = BackgroundHandler(pipe[1], most=50)
    handler.setFormatter(JsonFormatter())

    def log():
        for number in range(MANY):
            handler.handle(logging.LogRecord("serfer.api", logging.INFO, "", number, LINE, (), None))

    assert within_patience(log)
    kept, said = lines_and_losses(reader, lambda line: json.loads(line).get("lines", 0))
    assert len(kept) < MANY
    assert {(each["level"], each["event"]) for each in map(json.loads, said)} == {("warning", "log lines dropped")}


def test_a_process_whose_log_is_not_read_ends(pipe):
    code = (
        "from serfer.api.observability.logs import configure_logs, write\n"
        "configure_logs('info', in_background=True)\n"
        f"for _ in range({MANY}): write(20, 'e', {{'x': 'y' * 1000}})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=pipe[1])
    try:
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
