"""Become a command after a while, as a machine that boots: `python -I -S boot_delay.py SECONDS COMMAND...`."""

import os
import sys
import time


def main(seconds: str, *command: str) -> None:
    """Wait, and become `command`, an absolute path and its arguments: same process id, same start time."""
    time.sleep(float(seconds))
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
