"""File descriptors: as many as the machine allows."""

from __future__ import annotations

import resource

FEW = 1024
"""Below this a stack of drivers, functions and their clients runs out under an ordinary load."""


def raise_limit() -> int:
    """Raise this process's limit of open files, which its children inherit, to the most that it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
