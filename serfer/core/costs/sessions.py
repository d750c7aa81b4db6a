"""The threads of an ONNX Runtime session: of workers, of the profiles of operators, and of the splitter's checks."""

from __future__ import annotations

from typing import Any


def set_threads(options: Any, threads: int) -> None:  # noqa: ANN401 - an onnxruntime.SessionOptions
    """Make a session compute on `threads` threads (0: one for each core) that do not spin while they wait."""
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
