"""Run a command that the kernel kills when its parent dies: `python -I -S die_with_parent.py PID 0 COMMAND...`.

Linux ties this to the thread that started the command: start it from one that lives for as long as the command should.
Other systems have nothing of the kind: there the command outlives a parent that is killed.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def dying_with_me(*command: str, deaf: bool = False) -> list[str]:
    """Return the command line that runs `command`, an absolute path and its arguments, for as long as we live.

    A `deaf` one, which we end, ignores SIGTERM: where all processes of a service get it, we first answer what runs.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(deaf)), *command]


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, and exit where that has happened already."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - who only starts such a command does without

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit(f"parent {parent} is gone")


def main(parent: str, deaf: str, *command: str) -> None:
    die_with(int(parent))
    if int(deaf):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of a program that handles it all the same
    os.execv(command[0], command)  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
