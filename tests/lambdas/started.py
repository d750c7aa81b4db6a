"""Processes that start as a function's environments do, and the memory that they take."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEAK = """
import sys
from pathlib import Path
from serfer.lambdas.sessions import SessionCache
from serfer.lambdas.weights import FileRanges, WeightSource
from serfer.core.plan import Artefact, Function

def megabytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024

home, size, digest, threads = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
cache = SessionCache(home, threads, source=WeightSource(FileRanges(home)))
before = megabytes("VmRSS")
cache.load([Function(Artefact("weights-0.bin", size, digest), (Artefact("tile.onnx", 0, ""),))])
print(before, megabytes("VmHWM"))
"""


def start(directory, code="", before="", **variables):
    """Import the bootstrap as `b` in the package of a function, then run `code`."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "LAMBDA_TASK_ROOT": str(directory),
        "SERFER_STORE": "memory://",
        **variables,
    }
    code = f"{before}import serfer.lambdas.bootstrap as b\n{code}"
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def memory_mb(home, data, model, threads):
    """Return the memory of a fresh process before it fetches weights and builds a session, and the most meanwhile."""
    digest = hashlib.sha256(data).hexdigest()
    (home / digest).write_bytes(data)
    (home / "tile.onnx").write_bytes(model)
    command = [sys.executable, "-c", PEAK, str(home), str(len(data)), digest, str(threads)]
    return map(float, subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split())
