"""A process on a pseudo-terminal that imports commands once, and runs each in a fork of its own.

It reads a JSON list of arguments a line, in the working directory that is its first item, and prints END and the exit
code after each.
"""

import json
import os
import sys
from importlib import import_module

from serfer.cli.main import COMMANDS, app
from serfer.cli.shared.lazy import INSTALLED
from serfer.cli.shared.terminal import _exit_code, _Interrupt

END = "\x1e"
IMPORTED = ("serfer.pictures", "serfer.wiring.open_pipeline", "serfer.registry", "serfer_bench.study.sim.simulate")


def main(queue):
    for place, *_ in COMMANDS.values():
        if place != INSTALLED:
            import_module(place.partition(":")[0])
    for name in IMPORTED:
        import_module(name)
    for line in queue:
        directory, *arguments = json.loads(line)
        child = os.fork()
        if not child:
            os.chdir(directory)
            code = _exit_code(app, arguments, _Interrupt())
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{END}{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with open(int(sys.argv[1]), encoding="utf-8") as lines:  # noqa: PTH123 - a descriptor
        main(lines)
