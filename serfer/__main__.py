"""The command `serfer`, and `python -m serfer`: what happens before the command line can look after itself."""

from __future__ import annotations

import os

_INTERRUPTED = 130


def _leave(*_: object) -> None:
    """End at once: nothing has been started yet, and an exception might be lost in a package's import."""
    os.write(2, b"serfer: interrupted\n")
    os._exit(_INTERRUPTED)


try:
    import signal
except KeyboardInterrupt:
    _leave()


def main(*, check: bool = True) -> None:
    """Import the command line, which takes long enough to be interrupted, and run it; `check` SERFER_* variables."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background of a shell it is ignored
        signal.signal(signal.SIGINT, _leave)  # until the command line has a handler of its own
    from serfer.cli.main import main as run  # noqa: PLC0415 - an interrupt must find our handler

    run(check=check)


if __name__ == "__main__":
    main()
