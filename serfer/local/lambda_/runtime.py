"""The parts of an execution environment that AWS installs: its runtime client and its variables."""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from serfer.extras import missing_extra
from serfer.local.lambda_.function import REGION, python_version

if TYPE_CHECKING:
    from serfer.local.lambda_.function import FunctionConfig

PACKAGES = ("awslambdaric", "simplejson", "snapshot-restore-py")  # the client and all that it requires
BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
DATA_SLACK_MB = 64  # RLIMIT_DATA counts reserved thread stacks too, which Lambda's memory limit does not


def runtime_directory(cache: Path) -> Path:
    """Return the directory under `cache` that holds awslambdaric and what it needs, made when first asked for.

    Its name carries the versions; it appears in one rename, so processes may ask at once.
    Raises MissingExtraError if awslambdaric is not installed.
    """
    try:
        parts = [metadata.distribution(name) for name in PACKAGES]
    except metadata.PackageNotFoundError as error:
        raise missing_extra("awslambdaric") from error
    versions = "-".join(f"{name}-{part.version}" for name, part in zip(PACKAGES, parts, strict=True))
    target = cache / f"{sys.implementation.cache_tag}-{versions}"
    if target.is_dir():
        return target
    cache.mkdir(0o755, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".runtime-", dir=cache))
    try:
        for part in parts:
            _copy(part, fresh)
        compileall.compile_dir(fresh, quiet=2)
        fresh.chmod(0o755)
        fresh.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was first
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _copy(part: metadata.Distribution, target: Path) -> None:
    for file in part.files or ():
        source = Path(str(part.locate_file(file)))
        if ".." in file.parts or file.suffix == ".pyc" or not source.is_file():
            continue
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / file)


def command(config: FunctionConfig, slowness: float = 1.0) -> list[str]:
    """Return the command line of a worker of this function, to be started by this process.

    Its handler takes `slowness` times as long as it needs.
    """
    data_limit = (config.memory_mb + DATA_SLACK_MB) << 20
    layers = [str(layer.resolve() / "python") for layer in config.layers]
    own = [str(BOOTSTRAP), str(os.getpid()), str(data_limit), str(slowness)]
    wrapper = [str(config.wrapper)] if config.wrapper else []
    return [str(config.interpreter), "-S", "-P", *wrapper, *own, *layers]


def variables(config: FunctionConfig, runtime: Path, api_port: int, stream: str) -> dict[str, str]:
    """Return all that a worker sees of an environment: Lambda's own variables, then the function's."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": ":UTC",
        "PYTHONPATH": str(runtime),
        "PYTHONDONTWRITEBYTECODE": "1",  # /var/task is read-only in AWS
        "PYTHONUNBUFFERED": "1",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_python{python_version(config.interpreter)}",
        "AWS_LAMBDA_FUNCTION_NAME": config.name,
        "AWS_LAMBDA_FUNCTION_VERSION": config.version,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(config.memory_mb),
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{config.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": stream,
        **config.environment,
        "LAMBDA_RUNTIME_DIR": str(runtime),
        "LAMBDA_TASK_ROOT": str(config.directory.resolve()),
        "_HANDLER": config.handler,
        "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{api_port}",
    }
