"""The log of an environment: Powertools' logger, imported when there is a line to write, which few cold starts have."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING

from storage.deferred_init import defer_init

if TYPE_CHECKING:
    from aws_lambda_powertools.logging import Logger

_LEVELS = "POWERTOOLS_LOG_LEVEL", "LOG_LEVEL", "AWS_LAMBDA_LOG_LEVEL"
"""The variables that the logger takes its level from."""


@functools.cache
def logger() -> Logger:
    """Return the logger of this environment."""
    defer_init("aws_lambda_powertools")  # a worker takes its logger, not metrics and tracing
    from aws_lambda_powertools.logging import Logger  # noqa: PLC0415 - takes a twentieth of a cold start

    return Logger(service="serfer", serialize_stacktrace=False)


def logs_details() -> bool:
    """Return whether lines at DEBUG are written; by the logger only where a variable asks for them."""
    asked = any(os.environ.get(name, "").upper() == "DEBUG" for name in _LEVELS)
    return asked and bool(logger().log_level <= logging.DEBUG)
