"""Everything that a function can do to its environment, one attribute each."""

# ruff: noqa: T201 - printing is how a handler logs

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

calls = 0
hoarded = []


def echo(event, context):
    """Say who ran and what it was told."""
    global calls  # noqa: PLW0603 - shows that the process is reused
    calls += 1
    client = context.client_context and context.client_context.custom
    return {
        "event": event,
        "calls": calls,
        "pid": os.getpid(),
        "environment": context.log_stream_name,
        "arn": context.invoked_function_arn,
        "left_ms": context.get_remaining_time_in_millis(),
        "client": client,
    }


def variables(_event, _context):
    return {"environ": dict(os.environ), "cwd": str(Path.cwd()), "path": sys.path}


def wait(event, _context):
    """Tell through one FIFO that it runs, then block until another is opened for writing."""
    Path(event["entered"]).write_text(json.dumps(os.getpid()))
    return Path(event["leave"]).read_text()


def toil(event, _context):
    until = time.process_time() + event
    while time.process_time() < until:
        pass
    return event


def fail(event, context):
    print("failing", context.aws_request_id)
    raise LookupError(f"no {event}")


def leave(event, _context):
    child = subprocess.Popen(["/bin/sleep", "1000"])
    print("child", child.pid)
    if event["status"] < 0:
        os.kill(os.getpid(), -event["status"])
    os._exit(event["status"])


def hang(_event, _context):
    threading.Event().wait()


def hoard(_event, _context):
    hoarded.append(b"x" * (160 << 20))
    threading.Event().wait()


def grasp(_event, _context):
    return len(bytearray(10 << 30))


def chatter(event, _context):
    for number in range(event["lines"]):
        print(number, "x" * 1000)
    sys.stdout.write("said")
    return event["lines"]


def large(event, _context):
    return "x" * event["bytes"]


def imports(event, _context):
    def possible(name):
        try:
            importlib.import_module(name)
        except ImportError:
            return False
        return True

    return {name: possible(name) for name in event}
