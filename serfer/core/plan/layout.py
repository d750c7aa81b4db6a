"""Names of the files in a plan directory, relative to it.

plan.json
explanation.json                what people read of the plan; functions are without it
unsplit.onnx                    the whole network, pointing into the stages' weights
original.onnx, original.bin     the model as it was given, where the plan differs from it
int8.onnx                       the whole network in 8 bits, for instances, with its weights
stage-0/weights-0.bin           the weights of function 0 of stage 0
stage-0/<name>.onnx             a graph of one of its tiles or more
cold/                           another plan of the network, for queries that find no warm environments; it has no cold/
"""

from __future__ import annotations

import re

PLAN_FILE = "plan.json"
EXPLANATION_FILE = "explanation.json"
UNSPLIT = "unsplit.onnx"
DECODER = "decoder.onnx"
ORIGINAL = ("original.onnx", "original.bin")
QUANTISED = "int8.onnx"
COLD_DIRECTORY = "cold"
_TOP = frozenset({PLAN_FILE, EXPLANATION_FILE, UNSPLIT, DECODER, *ORIGINAL, QUANTISED})
_GRAPH = r"[0-9a-f]{1,64}\.onnx"
_STAGE = re.compile(rf"stage-\d+(/(weights-\d+\.bin|{_GRAPH}))?")


def stage_directory(stage: int) -> str:
    return f"stage-{stage}"


def weights_file(function: int) -> str:
    return f"weights-{function}.bin"


def is_graph(path: str, stage: int) -> bool:
    return re.fullmatch(f"{stage_directory(stage)}/{_GRAPH}", path) is not None


def is_part(path: str) -> bool:
    """Whether `path` can be a file or a directory of a plan directory, or of the cold plan in it."""
    own = path.removeprefix(f"{COLD_DIRECTORY}/")
    return path == COLD_DIRECTORY or own in _TOP or _STAGE.fullmatch(own) is not None
