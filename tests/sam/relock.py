"""Makes the lock files of the layers again, after a version in requirements.txt has changed.

    python -m tests.sam.relock

It downloads every wheel of every offered runtime and architecture, some 600 MB.
"""

import hashlib
import re
import tempfile
import zipfile
from collections import defaultdict
from itertools import product
from pathlib import Path

from packaging.utils import canonicalize_name

from serfer.packaging.manifest import CONTENTS
from serfer.sam.build.wheels import GPU, Pin, download, lock_file
from serfer.sam.options import ARCHITECTURES, RUNTIMES

REQUIREMENTS = Path(__file__).parents[2] / "requirements.txt"
NEWEST = {b"GLIBC": (2, 34), b"GLIBCXX": (3, 4, 29), b"CXXABI": (1, 3, 13)}  # of Amazon Linux 2023
NEWEST_GPU = "1.31.1"  # of onnxruntime-gpu: it had not been published for ONNX Runtime 1.32.0 by 2026-11-29
SYMBOL_VERSION = re.compile(rb"\b(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)\0")


def versions():
    pins = re.findall(r"^([\w.-]+)==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def dump(pinned):
    head = "# Made by `python -m tests.sam.relock` from requirements.txt: wheels of each runtime and architecture."
    lines = (
        [f"{pin.name}=={pin.version}", *(f"--hash=sha256:{digest}" for digest in sorted(pin.hashes))] for pin in pinned
    )
    return "\n".join([head, *(" \\\n    ".join(line) for line in lines)]) + "\n"


def newer_symbols(wheel):
    """Return the symbol versions of a wheel's libraries that Lambda's runtimes do not have: it would fail there."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.read(name) for name in archive.namelist() if ".so" in name]
    found = {match for library in libraries for match in SYMBOL_VERSION.findall(library)}
    return sorted((kind, version) for kind, version in found if tuple(map(int, version.split(b"."))) > NEWEST[kind])


def main():
    pinned = versions()
    layers = {layer: sorted(map(canonicalize_name, each.distributions)) for layer, each in CONTENTS.items()}
    wanted = {name: pinned[name] for names in layers.values() for name in names}
    hashes = digests_of(wanted, ARCHITECTURES)
    for layer, names in layers.items():
        write(layer, {name: wanted[name] for name in names}, hashes)
    gpu = {"onnxruntime-gpu": NEWEST_GPU}
    write(GPU, gpu, digests_of(gpu, ("x86_64",)))


def digests_of(wanted, architectures):
    hashes = defaultdict(set)
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "wanted.txt"
        lines.write_text("".join(f"{name}=={version}\n" for name, version in wanted.items()))
        for runtime, architecture in product(RUNTIMES, architectures):
            directory = Path(scratch) / f"{runtime}-{architecture}"
            download(lines, runtime, architecture, directory)
            for wheel in directory.glob("*.whl"):
                assert not newer_symbols(wheel), (wheel.name, newer_symbols(wheel))
                hashes[canonicalize_name(wheel.name.split("-")[0])].add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    return hashes


def write(layer, wanted, hashes):
    pinned = [Pin(name, version, frozenset(hashes[name])) for name, version in wanted.items()]
    lock_file(layer).write_text(dump(pinned))


if __name__ == "__main__":
    main()
