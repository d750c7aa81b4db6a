"""Whose a directory of a store or a registry is."""

import os
from pathlib import Path

from serfer.core.errors import UsageError


def check_owner(root: Path) -> None:
    """Raise UsageError for a directory that everyone may write and another user than root made, as in /tmp."""
    status, trusted = root.stat(), {0, os.geteuid(), int(os.environ.get("SUDO_UID") or 0)}
    if status.st_mode & 0o002 and status.st_uid not in trusted:
        raise UsageError(f"{root} belongs to another user ({status.st_uid}) and all may write it: give one of your own")
