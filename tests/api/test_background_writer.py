import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from serfer.api.observability.background_writer import BackgroundHandler, BackgroundWriter
from serfer.api.observability.logs import JsonFormatter
from tests import bugs
from tests.api.conftest import PATIENCE

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


def lines_of(descriptor, enough):
    with os.fdopen(os.dup(descriptor), "rb") as file:
        lines = []
        while not enough(lines):
            lines.append(file.readline().decode().rstrip("\n"))
        return lines


def test_lines_that_are_not_read_keep_no_caller_waiting_and_are_counted(pipe):
    writer = BackgroundWriter(pipe[1], lambda lost: f"lost {lost}", most=50)
    assert within_patience(lambda: [writer.write(f"{number} {LINE}") for number in range(MANY)])
    lines = lines_of(pipe[0], lambda lines: lines and lines[-1].startswith("lost "))
    kept = [int(line.split()[0]) for line in lines[:-1]]
    assert kept == [*range(len(kept))]
    assert len(kept) + int(lines[-1].split()[1]) == MANY
    assert len(kept) < MANY


def test_a_bug_in_telling_what_was_lost_loses_no_more(pipe):
    writer = BackgroundWriter(pipe[1], bugs.buggy, most=50)
    assert within_patience(lambda: [writer.write(f"{number} {LINE}") for number in range(MANY)])
    lines = lines_of(pipe[0], lambda lines: lines and "dropped" in lines[-1])
    assert "log lines dropped (ZeroDivisionError('a bug'))" in lines[-1]
    writer.write("the next")
    assert lines_of(pipe[0], bool) == ["the next"]


def test_lines_are_whole_and_in_order_again_after_a_loss(pipe):
    writer = BackgroundWriter(pipe[1], lambda lost: f"lost {lost}", most=50)
    for _ in range(MANY):
        writer.write(LINE)
    lines_of(pipe[0], lambda lines: lines and lines[-1].startswith("lost "))
    writer.write("after")
    assert lines_of(pipe[0], bool) == ["after"]


def test_what_waits_is_written_before_an_end(pipe):
    writer = BackgroundWriter(pipe[1], str)
    for number in range(30):
        writer.write(str(number))
    writer.flush()
    assert os.read(pipe[0], 65536).decode().split() == [str(number) for number in range(30)]


def test_a_reader_that_is_gone_keeps_no_caller_waiting(pipe):
    os.close(pipe[0])
    writer = BackgroundWriter(pipe[1], str, most=50)
    for _ in range(MANY):
        writer.write(LINE)
    assert within_patience(writer.flush)


def test_a_descriptor_that_does_not_block_is_waited_for(pipe):
    os.set_blocking(pipe[1], False)
    writer = BackgroundWriter(pipe[1], str)
    for _ in range(MANY):
        writer.write(LINE)
    assert lines_of(pipe[0], lambda lines: len(lines) == MANY) == [LINE] * MANY


def test_a_handler_logs_how_many_lines_were_dropped(pipe):
    handler = BackgroundHandler(pipe[1], most=50)
    handler.setFormatter(JsonFormatter())
    record = logging.LogRecord("serfer.api", logging.INFO, "", 0, LINE, None, None)
    for _ in range(MANY):
        handler.handle(record)
    lines = lines_of(pipe[0], lambda lines: lines and "dropped" in lines[-1])
    last = json.loads(lines[-1])
    assert (last["level"], last["event"], last["lines"]) == ("warning", "log lines dropped", MANY - len(lines) + 1)


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
