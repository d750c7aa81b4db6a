import io
import logging
from contextlib import contextmanager

from serfer.api.observability.logs import configure_logs

_NAMES = (None, "serfer", "uvicorn", "uvicorn.error", "uvicorn.access")


@contextmanager
def logged(level="debug", *, as_json=True):
    """Send log lines into a stream, which it yields, and leave loggers as they were."""
    loggers = [logging.getLogger(name) for name in _NAMES]
    before = [(logger, logger.level, logger.handlers[:], logger.propagate) for logger in loggers]
    stream = io.StringIO()
    configure_logs(level, stream, as_json=as_json)
    try:
        yield stream
    finally:
        for logger, set_level, handlers, propagate in before:
            logger.setLevel(set_level)
            logger.handlers[:], logger.propagate = handlers, propagate
