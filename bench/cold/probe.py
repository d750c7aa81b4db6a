"""Times the parts of a cold start inside a worker's process: a wrapper of the bootstrap, which it runs unchanged.

    python -S -P probe.py bootstrap.py ARG...

Every module of a worker is loaded through the import system, so each load is timed, and functions of FUNCTIONS are
wrapped as soon as their module has been loaded. Time belongs to the innermost part that is running, so that the parts
add up to the whole. After each invocation a line is written to the log: MARK, then JSON of seconds by part since the
line before, with `first` and `now` on the machine's monotonic clock.
"""

from __future__ import annotations

import sys
import time

_FIRST = time.monotonic()

# ruff: noqa: E402 - the interpreter's start ends above
import json
import os
import runpy
import threading
from collections import defaultdict
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MARK = "serfer-cold-start "
HANDLER = "serfer.lambdas.bootstrap", "handler"
FUNCTIONS = {
    ("serfer.plan_directory", "load_plan"): "plan",
    ("serfer.lambdas.artefacts", "artefact_directory"): "plan",
    ("serfer.storage.routed", "open_routed"): "store",
    ("serfer.lambdas.sessions", "SessionCache.load"): "weights",
    ("serfer.lambdas.sessions", "SessionCache._load_weights"): "weights",
    ("serfer.lambdas.sessions", "SessionCache._build"): "graphs",
    ("onnxruntime.capi.onnxruntime_inference_collection", "InferenceSession.__init__"): "sessions",
    ("onnxruntime.capi.onnxruntime_inference_collection", "InferenceSession.run"): "run",
    HANDLER: "task",
}
"""The part of each function that is timed, by module and name."""
PACKAGES = {
    **dict.fromkeys(("awslambdaric", "simplejson", "snapshot_restore_py", "runtime_client"), "runtime"),
    "serfer": "own code",
    **dict.fromkeys(("botocore", "urllib3"), "store client"),
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "aws_lambda_powertools": "logger",
}
"""The part of a package's imports; modules of the standard library belong to what imports them first."""


class Parts:
    """Seconds by part; only the thread that made it counts, others run while it waits for them."""

    def __init__(self, now: float) -> None:
        self._stack = ["runtime"]
        self._since = now
        self._thread = threading.get_ident()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's own
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._switch()
            self._stack.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._stack.pop()

        return call

    def taken(self) -> dict[str, float]:
        self._switch()
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds

    def _switch(self) -> None:
        now = time.monotonic()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now


class Finder(MetaPathFinder):
    """Finds modules as the import system does, with loaders that are timed."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._invoked = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        part = PACKAGES.get(name.partition(".")[0])
        run = loader.exec_module
        if part:
            loader.create_module = self._parts.timed(part, loader.create_module)
            run = self._parts.timed(part, run)

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._wrap(module)

        loader.exec_module = exec_module
        return spec

    def _wrap(self, module: ModuleType) -> None:
        for (name, function), part in FUNCTIONS.items():
            if name == module.__name__:
                *owners, attribute = function.split(".")
                owner: Any = module
                for each in owners:
                    owner = getattr(owner, each)
                timed = self._parts.timed(part, getattr(owner, attribute))
                setattr(owner, attribute, self._reported(timed) if (name, function) == HANDLER else timed)

    def _reported(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def handle(event: Any, context: Any) -> Any:  # noqa: ANN401 - a handler's
            if self._invoked:  # it has waited for this one
                self._parts.taken()
            self._invoked = True
            try:
                return handler(event, context)
            finally:
                seconds = self._parts.taken()
                line = {"pid": os.getpid(), "first": _FIRST, "now": time.monotonic(), "parts": seconds}
                sys.stdout.write(f"{MARK}{json.dumps(line)}\n")
                sys.stdout.flush()

        return handle


def main() -> None:
    sys.meta_path.insert(0, Finder(Parts(_FIRST)))
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
