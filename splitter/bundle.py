"""The package of a stage's function: handler, pruned dependencies, plan and weights in one directory.

    DIR/lambdas, storage, serfer/core     our code
    DIR/numpy, onnxruntime, redis, ...    what it imports, without what a worker never uses
    DIR/plan.json, stage-K/               the plan and this stage's artefacts

Everything in it also works unpacked under /var/task of the python3.11 runtime. torch is never part of it.
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.metadata
import os
import py_compile
import shutil
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from serfer.core.errors import InputError, ModelError
from serfer.core.plan import PLAN_FILE, Plan
from splitter.cache import assembled, in_use

DEPENDENCY_LIMIT = 94_000_000
"""Bytes that a function's code and dependencies may take; the splitter plans with it, assembling checks it."""

DISTRIBUTIONS = (
    *("aws_lambda_powertools", "jmespath", "typing_extensions"),
    *("botocore", "python-dateutil", "six", "urllib3"),  # a store in S3, and Redis by IAM
    *("msgpack", "numpy", "onnxruntime", "redis"),
)
_ALWAYS = frozenset(map(canonicalize_name, DISTRIBUTIONS))
_OUR_PACKAGES = ("lambdas", "serfer.core", "storage")
HANDLER = "lambdas.bootstrap.handler"

# What a worker never imports, as path prefixes inside site-packages. Each was found by importing without it.
_PRUNED = (
    "aws_lambda_powertools/event_handler/",
    *(
        f"aws_lambda_powertools/utilities/{name}/"
        for name in ("batch", "circuit_breaker", "data_classes", "data_masking")
    ),
    *(f"aws_lambda_powertools/utilities/{name}/" for name in ("feature_flags", "idempotency", "kafka", "parameters")),
    *(f"aws_lambda_powertools/utilities/{name}/" for name in ("parser", "streaming", "validation")),
    "botocore/data/",
    "dateutil/zoneinfo/",
    "numpy/f2py/",
    "numpy/distutils/",
    "numpy/random/",
    "numpy/_core/_simd.",
    "numpy/_core/include/",
    "numpy/_core/lib/",
    "onnxruntime/backend/",
    "onnxruntime/datasets/",
    "onnxruntime/quantization/",
    "onnxruntime/tools/",
    "onnxruntime/transformers/",
    "onnxruntime/capi/libonnxruntime.so",
    "onnxruntime/ThirdPartyNotices.txt",
    "storage/contract.py",
    "urllib3/contrib/emscripten/",
)
# Below what is pruned: by these alone S3's address is found. No client of botocore's is made, so no other is read.
_NEEDED = frozenset({"botocore/data/partitions.json", "botocore/data/s3/2006-03-01/endpoint-rule-set-1.json.gz"})
_PRUNED_PARTS = frozenset({"tests", "__pycache__", "RECORD"})
_PRUNED_SUFFIXES = frozenset({".pyi", ".pyc", ".c", ".h", ".pxd", ".pyx", ".md"})


def function_directory(
    plan: Plan, plan_directory: Path, stage: int, number: int, cache: Path, plugin: str | None = None
) -> Path:
    """Return the package directory of function `number` of a stage, assembled in `cache` unless it is there already.

    `plugin` is an installed distribution that it needs besides, with what that requires: that of a plugged-in store.
    Raises ModelError where the dependencies take more than DEPENDENCY_LIMIT, InputError for a plugin that cannot be
    packed.
    """
    base = dependencies(cache, plugin)
    target = cache / "functions" / f"{plan.function(stage, number)}-{base.name}"
    part = plan.stages[stage].functions[number]
    files = [PLAN_FILE, part.weights.path, *(graph.path for graph in part.graphs)]
    if in_use(target):
        if all(_same(target / file, plan_directory / file) for file in files):
            return target
        shutil.rmtree(target)  # somebody has altered it
    with assembled(target) as directory:
        shutil.copytree(base, directory, copy_function=_link, dirs_exist_ok=True)
        for file in files:
            (directory / file).parent.mkdir(exist_ok=True)
            shutil.copy2(plan_directory / file, directory / file)  # never linked: a plan directory is its owner's
    return target


def _same(one: Path, other: Path) -> bool:
    """Compare size and time of change: the plan's own file has just been hashed, and a copy keeps its time."""
    if not one.is_file():
        return False
    mine, theirs = one.stat(), other.stat()
    return (mine.st_size, mine.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def dependencies(cache: Path, plugin: str | None = None) -> Path:
    """Return a directory with a worker's code and pruned dependencies, built in `cache` when anything in it changed."""
    plugged_in = _required(plugin) if plugin else set()
    sources = sorted(_our_files(_OUR_PACKAGES) | _dependency_files({*DISTRIBUTIONS} | plugged_in))
    stamp = _stamp(sources)
    target = cache / "dependencies" / stamp
    if in_use(target):
        return target
    with assembled(target) as directory:
        for relative, path in sources:
            (directory / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / relative)
        (directory / "serfer" / "__init__.py").write_text("", encoding="utf-8")
        _compile(directory)
        size = directory_bytes(directory)
        if size > DEPENDENCY_LIMIT and not plugged_in:
            raise ModelError(
                f"a function's dependencies take {size:,} bytes, more than {DEPENDENCY_LIMIT:,}: prune more"
            )
    return target


def directory_bytes(directory: Path) -> int:
    """Add up the sizes of all files below a directory: what counts against Lambda's unzipped limit."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def code_stamp(packages: Sequence[str]) -> str:
    """Return 16 hex digits that change whenever a file of these packages of ours does."""
    return _stamp(sorted(_our_files(packages)))


def _stamp(sources: Sequence[tuple[str, Path]]) -> str:
    digest = hashlib.sha256(repr((_PRUNED, sorted(_NEEDED))).encode())
    for relative, path in sources:
        status = path.stat()
        digest.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _our_files(packages: Sequence[str]) -> set[tuple[str, Path]]:
    found = set()
    for package in packages:
        spec = find_spec(package)
        for root in map(Path, (spec and spec.submodule_search_locations) or ()):
            prefix = package.replace(".", "/")
            files = (path for path in root.rglob("*") if path.is_file())
            named = ((f"{prefix}/{path.relative_to(root).as_posix()}", path) for path in files if _kept(path))
            found |= {(name, path) for name, path in named if not name.startswith(_PRUNED)}
    return found


def _required(plugin: str) -> set[str]:
    """Return a distribution and all that it requires here, as far as it is not in every package anyway."""
    found: set[str] = set()
    waiting = [plugin]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in _ALWAYS:
            continue
        found.add(name)
        wanted = map(Requirement, importlib.metadata.requires(name) or ())
        waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    if not any(file.suffix == ".py" for name in found for file in importlib.metadata.files(name) or ()):
        raise InputError(f"{plugin} is installed in a way that cannot be packed: install it, but not --editable")
    return found


def _dependency_files(distributions: Iterable[str]) -> set[tuple[str, Path]]:
    found = set()
    for distribution in distributions:
        for file in importlib.metadata.files(distribution) or ():
            name = file.as_posix()
            if _kept(file) and (name in _NEEDED or not name.startswith(_PRUNED)) and ".." not in file.parts:
                found.add((name, Path(str(file.locate()))))
    return found


def _kept(path: Path | PurePosixPath) -> bool:
    return not _PRUNED_PARTS & set(path.parts) and path.suffix not in _PRUNED_SUFFIXES


def _compile(directory: Path) -> None:
    """Compile ahead, unchecked by time stamps: Lambda's code directory is read-only, and packing changes times."""
    compileall.compile_dir(
        directory, quiet=2, stripdir=str(directory), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


def _link(source: str, target: str) -> None:
    """Give a file of the cache a second name, or copy it where the file system cannot."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        shutil.copyfile(source, target)
