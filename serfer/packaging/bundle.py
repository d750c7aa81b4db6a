"""The package of a stage's function: handler, pruned dependencies, plan and weights in one directory.

    DIR/serfer/core, lambdas, storage     our code
    DIR/numpy, onnxruntime, redis, ...    what it imports, without what a worker never uses
    DIR/plan.json, stage-K/               the plan and this stage's artefacts, but no weights that it fetches

The same files work unpacked under /var/task of the python3.11 runtime. torch is never among them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from filecmp import cmp
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from serfer.build_cache import assembled, in_use, make_folder_of_files
from serfer.core.errors import InputError, PlanError
from serfer.core.plan import Plan
from serfer.core.plan.layout import PLAN_FILE
from serfer.packaging.compiling import compile_directory
from serfer.packaging.manifest import WORKER, files_of
from serfer.plan_directory import file_sha256

DEPENDENCY_ALLOWANCE = 117_000_000
"""Bytes of a function's package that plans reserve for code and dependencies.

Every layer that `serfer deploy package` builds from its locks fits in it (tested). What is installed here may take
more: local workers run with it, and `serfer split` then reserves what it takes.
"""

WEIGHTS = "weights"
"""The directory of the cache with the weights that local functions fetch."""
HANDLER = "serfer.lambdas.bootstrap.handler"
_ALWAYS = frozenset(map(canonicalize_name, WORKER.distributions))


def function_directory(plan: Plan, plan_directory: Path, stage: int, number: int, base: Path) -> Path:
    """Return the package directory of function `number` of a stage, assembled in the cache unless it exists.

    `base` is what `dependencies` returned, in the same cache. Sizes are not checked: a machine has no limit of its own,
    and what goes to AWS is measured where it is packaged.
    """
    target = base.parents[1] / "functions" / f"{plan.function(stage, number)}-{base.name}"
    files = [PLAN_FILE, *(file.path for file in plan.packaged(stage, number))]
    if in_use(target):
        if all(_same(target / file, plan_directory / file) for file in files):
            return target
        shutil.rmtree(target, ignore_errors=True)  # it was altered; another process may be at it, too
    with assembled(target) as directory:
        shutil.copytree(base, directory, copy_function=link, dirs_exist_ok=True)
        for file in files:
            (directory / file).parent.mkdir(exist_ok=True)
            shutil.copy2(plan_directory / file, directory / file)  # never linked: a plan directory is its owner's
    return target


def keep_weights(plan: Plan, plan_directory: Path, cache: Path) -> None:
    """Have the weights that a plan's functions fetch in the cache's directory of weights, each named by its SHA-256.

    They are copied when first needed, or where a copy was altered; other processes may do the same at once.
    Raises PlanError where the plan's own file was.
    """
    target = cache / WEIGHTS
    make_folder_of_files(target)
    for artefact in {file.sha256: file for place in plan.functions for file in plan.fetched(*place)}.values():
        entry = target / artefact.sha256
        if in_use(entry) and entry.stat().st_size == artefact.bytes and file_sha256(entry) == artefact.sha256:
            continue
        copy = target / f".{artefact.sha256}.{uuid.uuid4().hex}"
        try:
            shutil.copyfile(plan_directory / artefact.path, copy)  # never linked: a plan directory is its owner's
            if file_sha256(copy) != artefact.sha256:
                raise PlanError(f"{plan_directory / artefact.path} was altered: split the model again")
            copy.replace(entry)
        finally:
            copy.unlink(missing_ok=True)


def _same(one: Path, other: Path) -> bool:
    """Compare a copy with the plan's file, which has just been hashed, by size and time of change, which copies keep.

    Another copy of the same plan has other times: then by content, so that processes which start from different copies
    at once do not replace what the others run.
    """
    if not one.is_file():
        return False
    mine, theirs = one.stat(), other.stat()
    if mine.st_size != theirs.st_size:
        return False
    return mine.st_mtime_ns == theirs.st_mtime_ns or cmp(one, other, shallow=False)


def dependencies(cache: Path, plugin: str | None = None) -> Path:
    """Return a directory with a worker's code and pruned dependencies, built in `cache` when anything in it changed.

    `plugin` is an installed distribution that it needs besides, with its requirements: that of a plugged-in store.
    Looks at some 2,000 files. Raises InputError for a plugin that cannot be packed.
    """
    plugged_in = _required(plugin) if plugin else set()
    sources = sorted(WORKER.our_files() | _dependency_files({*WORKER.distributions} | plugged_in))
    stamp = _stamp(sources)
    target = cache / "dependencies" / stamp
    if in_use(target):
        return target
    with assembled(target) as directory:
        for relative, path in sources:
            (directory / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / relative)
        (directory / "serfer" / "__init__.py").write_text("", encoding="utf-8")
        compile_directory(str(directory))
    return target


def directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def code_stamp(packages: Sequence[str]) -> str:
    """Return 16 hex digits that change whenever a file of these packages of ours does."""
    return _stamp(sorted(files_of(packages)))


def _stamp(sources: Sequence[tuple[str, Path]]) -> str:
    digest = hashlib.sha256(repr((WORKER.pruned, WORKER.needed)).encode())
    for relative, path in sources:
        status = path.stat()
        digest.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _required(plugin: str) -> set[str]:
    required: set[str] = set()
    waiting = [plugin]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in required or name in _ALWAYS:
            continue
        required.add(name)
        wanted = map(Requirement, importlib.metadata.requires(name) or ())
        waiting += [need.name for need in wanted if need.marker is None or need.marker.evaluate({"extra": ""})]
    if not any(file.suffix == ".py" for name in required for file in importlib.metadata.files(name) or ()):
        raise InputError(f"{plugin} is installed in a way that cannot be packed: install it, but not --editable")
    return required


def _dependency_files(distributions: Iterable[str]) -> set[tuple[str, Path]]:
    kept = set()
    for distribution in distributions:
        for file in importlib.metadata.files(distribution) or ():
            name = file.as_posix()
            if WORKER.keeps(name):
                kept.add((name, Path(str(file.locate()))))
    return kept


def link(source: str, target: str) -> None:
    """Hard-link a file of the cache, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)
