"""The options of a worker's ONNX Runtime session, under which operators are profiled too."""

from __future__ import annotations

from typing import Any


def set_worker_options(options: Any, threads: int) -> None:  # noqa: ANN401 - an onnxruntime.SessionOptions
    """Make a session compute on `threads` threads that sleep while they wait, instead of spinning."""
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
