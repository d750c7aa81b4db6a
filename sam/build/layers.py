"""The directories that go to AWS: the workers' layer, the drivers' layer, and each function with its weights.

A layer is unpacked under /opt, and Python finds what lies in its `python` directory:

    /opt/python/numpy, serfer, ...                  the worker layer
    /opt/python/serfer_plan/stage-K/...             the layer with one function's weights
    /var/task/plan.json                             the function itself

A container image has the same files in /var/task alone: it has no layers.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from serfer.build_cache import assembled, in_use
from serfer.core.errors import ModelError, UnavailableError
from serfer.core.plan import Plan
from serfer.core.plan.layout import PLAN_FILE
from serfer.lambdas.artefacts import IN_LAYER
from serfer.packaging import compiling
from serfer.packaging.bundle import link
from serfer.packaging.compiling import interpreter, version_of
from serfer.packaging.manifest import CONTENTS
from serfer.sam.build import health, uploader
from serfer.sam.build.tree import Built, built, link_tree, seal, settle
from serfer.sam.build.wheels import GPU, lock_file, unpack, wheels
from serfer.sam.options import Options, digest12, function_id, weights_id
from serfer.sam.template import text
from serfer.sam.weights import Piece

WORKER_LAYER, DRIVER_LAYER, GPU_LAYER = "WorkerLayer", "DriverLayer", "GpuRuntime"
RUNNER_LAYER, HEALTH_FUNCTION = "RunnerLayer", "HealthFunction"
_COMPILE_S = 600
DOCKERFILE = "Dockerfile"
_BLOCK = 1 << 20
_FORMAT = "1"  # of what lies in the cache


def health_directory(target: Path) -> Built:
    target.mkdir(parents=True)
    shutil.copyfile(health.__file__, target / Path(health.__file__).name)
    return seal(target, HEALTH_FUNCTION)


def gpu_layer(target: Path, options: Options, cache: Path) -> Built:
    """Write the layer of what instances with a GPU need besides the drivers' layer: ONNX Runtime for CUDA."""
    (target / GPU).mkdir(parents=True)
    for wheel in wheels(lock_file(GPU), options.runtime, options.architecture, cache):
        link(str(wheel.path), str(target / GPU / wheel.path.name))
    return seal(target, GPU_LAYER)


def weights_layer(target: Path, plan: Plan, plan_directory: Path, stage: int, number: int) -> Built:
    """Write the layer with the graphs of one function, and its weights unless it fetches them.

    They are copied: a plan directory is its owner's.
    """
    _copy(plan_directory, target / "python" / IN_LAYER, *(file.path for file in plan.packaged(stage, number)))
    return seal(target, weights_id(digest12(plan), stage, number))


def function_directory(target: Path, plan: Plan, plan_directory: Path, stage: int, number: int) -> Built:
    _copy(plan_directory, target, PLAN_FILE)
    return seal(target, function_id(digest12(plan), stage, number))


def image_directory(
    target: Path, plan: Plan, plan_directory: Path, stage: int, number: int, worker: Path, base: str
) -> Built:
    """Write what a function's container image is built of: a Dockerfile, the worker layer, the plan and its files.

    The image, built on the image `base`, has all of it in the function's own directory. What is described is what the
    function has besides the worker layer, which is the directory `worker`.
    """
    link_tree(worker / "python", target / "worker")
    _copy(plan_directory, target / "function", PLAN_FILE, *(file.path for file in plan.packaged(stage, number)))
    (target / DOCKERFILE).write_text(text(DOCKERFILE).format(base=base), encoding="utf-8")
    settle(target)
    return built(target / "function")


def _copy(source: Path, target: Path, *paths: str) -> None:
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)


def piece_directory(target: Path, piece: Piece, weights: Path) -> Built:
    """Write the package of the function that uploads a piece of the weights in a file."""
    target.mkdir(parents=True)
    shutil.copyfile(uploader.__file__, target / Path(uploader.__file__).name)
    with weights.open("rb") as file, (target / uploader.PIECE.name).open("wb") as copy:
        file.seek(piece.offset)
        left = piece.bytes
        while left:
            block = file.read(min(left, _BLOCK))
            copy.write(block)
            left -= len(block)
    return seal(target, piece.function_id)


def check_size(name: str, worker: Built, own: Iterable[Built], limit: int) -> int:
    """Return the bytes of a function with its layers, unzipped: the worker layer, and what is its `own`."""
    mine = sum(part.bytes for part in own)
    size = worker.bytes + mine
    if size > limit:
        raise ModelError(
            f"function {name} takes {size:,} bytes unzipped, {size - limit:,} more than the {limit:,} that AWS allows: "
            f"{mine:,} of plan, weights and graphs, and {worker.bytes:,} of code and dependencies; split the network "
            "again with more --stages, with --precision fp16, or with a smaller limit_mb"
        )
    return size


def _layer(kind: str, name: str, target: Path, options: Options, cache: Path) -> Built:
    """Link a layer's files to those in the cache, where it is assembled unless it is there already and as it was."""
    python = interpreter(options.runtime)
    compiled_by = version_of(python) if python else None
    kept = cache / "layers" / _stamp(kind, options, compiled_by)
    try:
        layer = _unaltered(kept, compiled_by) if (found := in_use(kept)) else None
        if layer is None:
            if found:  # it was altered, or a link to it; one that another process puts there now stays
                shutil.rmtree(kept, ignore_errors=True)
            _assemble(kept, kind, name, options, cache, python)
            layer = _unaltered(kept, compiled_by)
    except OSError as error:
        reason = error.strerror or error
        raise UnavailableError(f"{cache} cannot be written: {reason}: choose another SERFER_CACHE_DIR") from error
    if layer is None:
        raise UnavailableError(f"something alters {kept}: choose another SERFER_CACHE_DIR")
    link_tree(kept / "layer", target)
    return layer


worker_layer = functools.partial(_layer, "worker", WORKER_LAYER)
"""Writes the layer of all stages' functions: handler, storage, core, and pruned dependencies."""
driver_layer = functools.partial(_layer, "driver", DRIVER_LAYER)
"""Writes the layer of the drivers, as functions or in a fleet."""
runner_layer = functools.partial(_layer, "runner", RUNNER_LAYER)
"""Writes what a driver function has besides its own layer where it runs its plan: workers' code, ONNX Runtime."""


def _unaltered(kept: Path, compiled_by: str | None) -> Built | None:
    try:
        expected = (kept / "digest").read_bytes()
        layer = built(kept / "layer", compiled_by)
    except FileNotFoundError:
        return None
    return layer if layer.digest.encode() == expected else None


def _stamp(kind: str, options: Options, compiled_by: str | None) -> str:
    contents = CONTENTS[kind]
    known = (_FORMAT, contents.pruned, contents.needed, options.runtime, options.architecture, compiled_by)
    digest = hashlib.sha256(repr(known).encode() + lock_file(kind).read_bytes())
    for path in (Path(compiling.__file__), *(path for _, path in sorted(contents.our_files()))):
        digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"{kind}-{options.runtime}-{options.architecture}-{digest.hexdigest()[:16]}"


def _assemble(kept: Path, kind: str, name: str, options: Options, cache: Path, python: Path | None) -> None:
    contents = CONTENTS[kind]
    with assembled(kept) as directory:
        root = directory / "layer" / "python"
        for wheel in wheels(lock_file(kind), options.runtime, options.architecture, cache):
            unpack(wheel, root, contents.keeps)
        for relative, path in sorted(contents.our_files()):
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, root / relative)
        if (root / "serfer").is_dir():
            (root / "serfer" / "__init__.py").touch()
        if python is not None:
            _compile(python, root)
        layer = seal(directory / "layer", name)
        (directory / "digest").write_text(layer.digest, encoding="ascii")


def _compile(python: Path, root: Path) -> None:
    """Compile under the runtime's own Python, hashing as in every other run: the same code gives the same bytes."""
    command = [str(python), "-S", "-P", compiling.__file__, str(root)]
    environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=_COMPILE_S)  # noqa: S603
    if done.returncode:
        last_lines = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise UnavailableError(f"{python} could not compile a layer: {' '.join(last_lines):.300}")
