"""Parts of planning that a plan can do without: a bug in one of them costs a line in the log, and not the plan."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import TypeVar

from serfer.core.errors import SerferError

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def optional(part: str, make: Callable[[], _Result], otherwise: Callable[[], _Result]) -> _Result:
    """Return what `make` returns, or where it fails by a bug of ours what `otherwise` does, and log the bug.

    Errors that SerFer raises on purpose, and a lack of memory, pass; so does what `otherwise` raises.
    """
    try:
        return make()
    except (SerferError, MemoryError):
        raise
    except Exception as bug:  # noqa: BLE001 - whatever it is, the plan can do without this part
        result = otherwise()
        frame = traceback.extract_tb(bug.__traceback__)[-1]
        words = " ".join(str(bug).split())
        _LOG.error(
            "a bug in SerFer, please report it: %s failed and the plan does without (%s in %s, line %s: %s)",
            part,
            type(bug).__name__,
            PurePath(frame.filename).name,
            frame.lineno,
            words,
        )
        _LOG.debug("frames of the bug", exc_info=bug)
        return result
