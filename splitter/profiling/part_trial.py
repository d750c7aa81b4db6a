"""What a part of a network takes on this machine, measured in a process of its own: `measured` starts it.

    python -m serfer.splitter.profiling.part_trial MODEL INPUTS KNOWN     prints {"times": ..., "peak_bytes": ...}

KNOWN is another model. Both run by turns, on one thread, as a function with one vCPU has, by processor time: what else
runs here slows both down, as far as it does. A process of its own has no memory of anything else, and where ONNX
Runtime ends it, the caller can say so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from serfer.core.errors import ModelError
from serfer.system import peak_bytes

_MOST_RUNS = 10
_RUNS_BESIDE = 3  # of the known model, by turns with the other
_LONG_S = 1.5  # after so many seconds of runs there is no other
_TIMEOUT_S = 300.0
_SHOWN = 300  # characters of what the process said


def measured(model: Path, inputs: Path, known: Path) -> tuple[float, int]:
    """Return how many times as long as `known` one image takes, and the bytes of memory that this takes at most.

    `inputs` is an .npz file of the model's inputs. Raises ModelError where the model does not run.
    """
    command = [sys.executable, "-P", "-m", __name__, str(model), str(inputs), str(known)]  # -P: no modules from here
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - ourselves
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"what cannot be split takes more than {_TIMEOUT_S:g} s for one image") from error
    if done.returncode:
        why = " ".join(done.stderr.strip().splitlines()[-1:])[:_SHOWN]
        how = f"signal {-done.returncode}" if done.returncode < 0 else why
        raise ModelError(f"what cannot be split does not run by itself in ONNX Runtime: {how}")
    answer = json.loads(done.stdout)
    return float(answer["times"]), int(answer["peak_bytes"])


def main() -> None:
    import onnxruntime as ort  # noqa: PLC0415 - what it takes is counted apart

    from serfer.core.costs.sessions import set_threads  # noqa: PLC0415 - same

    model, given, known = sys.argv[1:]
    with np.load(given, allow_pickle=False) as file:
        inputs = {name: file[name] for name in file.files}

    def session_of(path: str) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        set_threads(options, threads=1)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def seconds(session: ort.InferenceSession, inputs: dict[str, Any]) -> float:
        started = time.process_time()
        session.run(None, inputs)
        return time.process_time() - started

    before = peak_bytes()
    session = session_of(model)
    beside = session_of(known)
    image = {value.name: np.ones(value.shape, np.float32) for value in beside.get_inputs()}
    mine, others = list[float](), list[float]()
    while len(mine) < _MOST_RUNS and sum(mine) < _LONG_S:
        others += [seconds(beside, image) for _ in range(_RUNS_BESIDE)]
        mine.append(seconds(session, inputs))
    print(json.dumps({"times": min(mine) / min(others), "peak_bytes": peak_bytes() - before}))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
