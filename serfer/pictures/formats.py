"""The formats of pictures, which follow from a file's name."""

from __future__ import annotations

from pathlib import Path

from serfer.core.errors import UsageError
from serfer.extras import installed

SUFFIXES = (".png", ".svg", ".pdf")


def check_suffix(out: Path) -> str:
    """Return the suffix of a picture's name; raises UsageError for any other, MissingExtraError without matplotlib."""
    installed("matplotlib")  # before the work that is to be drawn
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{out} is not a name of a picture: it should end in {', '.join(SUFFIXES)}")
    return suffix
