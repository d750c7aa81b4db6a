"""Makes the lock files of the layers again, after a version in requirements.txt has changed.

    python -m serfer.sam.build.relock

It downloads every wheel of every offered runtime and architecture, some 600 MB.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

from packaging.utils import canonicalize_name

from serfer.packaging.manifest import CONTENTS
from serfer.sam.build.wheels import GPU, Pin, download, dump, lock_file
from serfer.sam.options import ARCHITECTURES, RUNTIMES

_REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements.txt"


def versions() -> dict[str, str]:
    lines = [line for line in _REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line]
    pairs = (line.partition("==") for line in lines)
    return {canonicalize_name(name): version.strip() for name, _, version in pairs}


def main() -> None:
    """Write all lock files; GPU instances have the ONNX Runtime in the version that everything else runs."""
    pinned = versions()
    layers = {
        layer: sorted(map(str, map(canonicalize_name, contents.distributions))) for layer, contents in CONTENTS.items()
    }
    wanted: dict[str, str] = {name: pinned[name] for names in layers.values() for name in names}
    hashes = _download(wanted, ARCHITECTURES)
    for layer, names in layers.items():
        _write(layer, {name: wanted[name] for name in names}, hashes)
    gpu = {"onnxruntime-gpu": pinned["onnxruntime"]}
    _write(GPU, gpu, _download(gpu, ("x86_64",)))


def _download(wanted: Mapping[str, str], architectures: Iterable[str]) -> Mapping[str, set[str]]:
    hashes = defaultdict[str, set[str]](set)
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "wanted.txt"
        lines.write_text("".join(f"{name}=={version}\n" for name, version in wanted.items()), encoding="utf-8")
        for runtime, architecture in product(RUNTIMES, architectures):
            directory = Path(scratch) / f"{runtime}-{architecture}"
            download(lines, runtime, architecture, directory)
            for path in directory.glob("*.whl"):
                name = canonicalize_name(path.name.split("-")[0])
                hashes[name].add(hashlib.sha256(path.read_bytes()).hexdigest())
    return hashes


def _write(layer: str, wanted: Mapping[str, str], hashes: Mapping[str, set[str]]) -> None:
    pinned = tuple(Pin(name, version, frozenset(hashes[name])) for name, version in wanted.items())
    lock_file(layer).write_text(dump(pinned), encoding="utf-8")


if __name__ == "__main__":
    main()
