"""Bugs that tests put into what runs in the background, and the traceback that the log must have of them."""

import json

from serfer.api.observability.logs import JsonFormatter


def buggy(*_, **__):
    raise ZeroDivisionError("a bug")


def logged(records):
    """Return how many lines of the log, as services write it, say where `buggy` has raised."""
    lines = [json.loads(JsonFormatter().format(record)) for record in records]
    return sum(any("buggy" in frame for frame in line.get("traceback", ())) for line in lines)
