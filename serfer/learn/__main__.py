"""A training in a process of its own: a record of a load on standard input, a model of values on standard output.

With the argument `background` at a low priority.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from serfer.control.values.load_record import MAX_RECORD_BYTES, LoadRecord
from serfer.core.errors import SerferError
from serfer.learn.training import BACKGROUND, train

_NICER: Final = 10  # what serves queries comes first
_MOST_CPU_S: Final = 3600


def main() -> None:
    """Learn, or exit with what was wrong in a line."""
    if sys.argv[1:] == [BACKGROUND]:
        os.nice(_NICER)
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    try:
        model = train(LoadRecord.decode(sys.stdin.buffer.read(MAX_RECORD_BYTES + 1)))
    except SerferError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the process that waits reads it
        raise SystemExit(error.exit_code) from error
    sys.stdout.buffer.write(model)


if __name__ == "__main__":
    main()
