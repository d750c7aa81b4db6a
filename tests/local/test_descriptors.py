import asyncio
import logging
import subprocess
import sys

from serfer.local.descriptors import bound_log

NONE_LEFT = {
    "message": "socket.accept() out of system resource",
    "exception": OSError(24, "Too many open files"),
}


def test_connections_that_cannot_be_accepted_are_logged_once_and_other_errors_each(caplog):
    caplog.set_level(logging.WARNING)
    loop = asyncio.new_event_loop()
    try:
        bound_log(loop)
        for _ in range(1000):
            loop.call_exception_handler(NONE_LEFT)
        for _ in range(2):
            loop.call_exception_handler({"message": "a task failed", "exception": ValueError("its own reason")})
    finally:
        loop.close()
    ours = [record for record in caplog.records if record.name == "serfer"]
    assert [record.getMessage() for record in ours] == [
        "connections wait to be accepted: Too many open files (raise the limit: ulimit -n)"
    ]
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == ["a task failed"] * 2


RAISE = """
import resource
from serfer.local.descriptors import raise_limit
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_is_raised_to_the_most_that_the_process_may_have():
    command = ["prlimit", "--nofile=64:256", sys.executable, "-c", RAISE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["256"] * 3
