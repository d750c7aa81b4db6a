"""Makes the lock files of the layers again, after a version in requirements.txt has changed.

    python -m serfer.sam.build.relock

It downloads every wheel of every offered runtime and architecture, some 600 MB.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import defaultdict
from pathlib import Path

from packaging.utils import canonicalize_name

from serfer.packaging.manifest import CONTENTS
from serfer.sam.build.pins import GPU, Pin, dump, lock_file
from serfer.sam.build.wheels import download
from serfer.sam.options import ARCHITECTURES, RUNTIMES

_GPU_RUNTIME, _GPU_ARCHITECTURE = "onnxruntime-gpu", "x86_64"
_REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements.txt"


def versions() -> dict[str, str]:
    lines = [line for line in _REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line]
    pairs = (line.partition("==") for line in lines)
    return {canonicalize_name(name): version.strip() for name, _, version in pairs}


def main() -> None:
    """Write all lock files."""
    _relock_layers()
    _relock_gpu()


def _relock_layers() -> None:
    names = {canonicalize_name(name) for contents in CONTENTS.values() for name in contents.distributions}
    pinned = versions()
    hashes = defaultdict(set)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text("".join(f"{name}=={pinned[name]}\n" for name in sorted(names)), encoding="utf-8")
        for runtime in RUNTIMES:
            for architecture in ARCHITECTURES:
                directory = Path(scratch) / f"{runtime}-{architecture}"
                download(wanted, runtime, architecture, directory)
                for path in directory.glob("*.whl"):
                    name = canonicalize_name(path.name.split("-")[0])
                    hashes[name].add(hashlib.sha256(path.read_bytes()).hexdigest())
    for layer, contents in CONTENTS.items():
        listed = sorted(map(canonicalize_name, contents.distributions))
        text = dump(tuple(Pin(name, pinned[name], frozenset(hashes[name])) for name in listed))
        lock_file(layer).parent.mkdir(exist_ok=True)
        lock_file(layer).write_text(text, encoding="utf-8")


def _relock_gpu() -> None:
    """Lock the ONNX Runtime of instances with a GPU, in the version that everything else runs."""
    version, hashes = versions()["onnxruntime"], set()
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{_GPU_RUNTIME}=={version}\n", encoding="utf-8")
        for runtime in RUNTIMES:
            directory = Path(scratch) / runtime
            download(wanted, runtime, _GPU_ARCHITECTURE, directory)
            hashes |= {hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.whl")}
    lock_file(GPU).write_text(dump((Pin(_GPU_RUNTIME, version, frozenset(hashes)),)), encoding="utf-8")


if __name__ == "__main__":
    main()
