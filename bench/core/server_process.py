"""A server of ours as a process of its own, for as long as a measurement lasts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serfer.core.errors import UnavailableError
from serfer_bench.core.processes import end

_END_S = 60.0


@contextmanager
def serving(command: str, directory: Path, options: Sequence[str]) -> Iterator[dict[str, Any]]:
    words = [sys.executable, "-m", "serfer", command, "--plan", str(directory), "--port", "0", "--json"]
    quiet = ["--set", "log_level=error", "--set", "drain_s=0"]
    with subprocess.Popen([*words, *quiet, *options], stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            line = process.stdout.readline()
            if not line:
                raise UnavailableError(f"serfer {command} ended with exit code {process.wait()}, and says why above")
            yield json.loads(line)
        finally:
            end(process, _END_S)
