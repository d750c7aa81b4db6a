"""What goes into a package that runs in AWS: our packages, distributions, and what of them is never imported there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

_PRUNED_PARTS = frozenset({"tests", "__pycache__", "RECORD"})
_PRUNED_SUFFIXES = frozenset({".pyi", ".pyc", ".c", ".h", ".pxd", ".pyx", ".md"})


@dataclass(frozen=True)
class Contents:
    """A package's contents; `pruned` and `needed` are path prefixes as in site-packages, and what is needed stays."""

    packages: tuple[str, ...]
    distributions: tuple[str, ...]
    pruned: tuple[str, ...]
    needed: tuple[str, ...]

    def keeps(self, name: str) -> bool:
        """Say whether a file belongs to the package, by its path inside site-packages."""
        path = PurePosixPath(name)
        if _PRUNED_PARTS & set(path.parts) or path.suffix in _PRUNED_SUFFIXES or ".." in path.parts:
            return False
        return name.startswith(self.needed) or not name.startswith(self.pruned)

    def our_files(self) -> set[tuple[str, Path]]:
        """Return the files of our own packages, each with its path inside the package."""
        return {(name, path) for name, path in files_of(self.packages) if self.keeps(name)}


# Each prefix was found by importing without it.
WORKER = Contents(
    packages=("lambdas", "serfer.core", "serfer.plan_directory", "storage"),
    distributions=(
        *("aws_lambda_powertools", "jmespath", "typing_extensions"),
        *("botocore", "python-dateutil", "six", "urllib3"),  # a store in S3, and Redis by IAM
        *("msgpack", "numpy", "onnxruntime", "redis"),
    ),
    pruned=(
        "aws_lambda_powertools/event_handler/",
        *(
            f"aws_lambda_powertools/utilities/{name}/"
            for name in ("batch", "circuit_breaker", "data_classes", "data_masking")
        ),
        *(
            f"aws_lambda_powertools/utilities/{name}/"
            for name in ("feature_flags", "idempotency", "kafka", "parameters")
        ),
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
    ),
    # By these alone S3's address is found. No client of botocore's is made, so no other is read.
    needed=("botocore/data/partitions.json", "botocore/data/s3/2006-03-01/endpoint-rule-set-1.json.gz"),
)


def files_of(packages: Sequence[str]) -> set[tuple[str, Path]]:
    """Return every file of packages and modules of ours, each with its path inside site-packages."""
    found = set()
    for package in packages:
        spec, prefix = find_spec(package), package.replace(".", "/")
        if spec and spec.origin and not spec.submodule_search_locations:
            found.add((f"{prefix}.py", Path(spec.origin)))
        for root in map(Path, (spec and spec.submodule_search_locations) or ()):
            files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
            found |= {(f"{prefix}/{path.relative_to(root).as_posix()}", path) for path in files}
    return found
