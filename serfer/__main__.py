"""The command `serfer`, and `python -m serfer`: what happens before the command line can look after itself."""

from __future__ import annotations

import os
import signal
from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once: nothing has been started yet, and an exception might be lost in a package's import."""
    os.write(2, b"serfer: interrupted\n")
    os._exit(_INTERRUPTED)


def main(*, check: bool = True) -> None:
    """Import the command line, which takes long enough to be interrupted, and run it; `check` SERFER_* variables."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # it is ignored in the background of a shell without job control
        signal.signal(signal.SIGINT, _leave)
    from serfer.cli.main import main as run  # noqa: PLC0415 - an interrupt must find our handler

    signal.signal(signal.SIGINT, usual)
    run(check=check)


if __name__ == "__main__":
    main()
