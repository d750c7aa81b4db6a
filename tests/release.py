"""Builds a release into dist/: `make release`. Nothing is uploaded.

Wheels and sdists of serfer and serfer-bench, and serfer-client's wheel, are built twice from the commit, with its time,
and must be equal byte by byte. Next to them are their checksums and a bill of materials, CycloneDX 1.6, of what
requirements.txt pins: what the release was tested with.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

import serfer
from serfer.sam.build.sbom import licences_of

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PROJECTS = {".": ("wheel", "sdist"), "bench": ("wheel", "sdist"), "serfer/client": ("wheel",)}
"""What is built of each. The client has files of serfer's, whose sdist is its source, too."""


class ReleaseError(Exception):
    """It cannot be released, for a reason of one line."""


def main():
    if git("status", "--porcelain"):
        raise ReleaseError("the checkout has changes: a release is built from a commit")
    written = git("log", "-1", "--format=%ct").strip()
    heading = f"## [{serfer.__version__}]"
    if heading not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise ReleaseError(f"CHANGELOG.md has no heading {heading}")
    with tempfile.TemporaryDirectory() as directory:
        first, second = (build(Path(directory) / name, int(written)) for name in ("first", "second"))
        differ = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
        if differ:
            raise ReleaseError(f"built twice, {', '.join(differ)} differ")
    files = first | {f"serfer-{serfer.__version__}.cdx.json": materials().encode()}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, data in {**files, "SHA256SUMS": sums.encode()}.items():
        (DIST / name).write_bytes(data)
    print(sums, end="")  # noqa: T201 - what a script says


def build(directory, seconds):
    """Build all from a fresh tree of the commit; return the files by name."""
    tree, out = directory / "tree", directory / "out"
    tree.mkdir(parents=True)
    out.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout  # noqa: S607
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        source.extractall(tree, filter="data")
    for project, kinds in PROJECTS.items():
        text = (tree / project / "pyproject.toml").read_text(encoding="utf-8")
        backend = tomllib.loads(text)["build-system"]["build-backend"]
        for kind in kinds:
            code = f"import sys, {backend} as backend; backend.build_{kind}(sys.argv[1])"
            known = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
            command = [sys.executable, "-c", code, str(out)]
            done = subprocess.run(command, cwd=tree / project, env=known, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ReleaseError(f"{project}: {kind}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return {path.name: timeless(path, seconds) for path in sorted(out.iterdir())}


def timeless(path, seconds):
    """Return a file's bytes, an sdist's with one time and owner: setuptools writes those of the build."""
    if path.suffix != ".gz":
        return path.read_bytes()
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for entry in sorted(old, key=lambda entry: entry.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.pax_headers = seconds, 0, 0, "", "", {}
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    return gzip.compress(packed.getvalue(), mtime=seconds)


def materials():
    """Return the bill of materials; the same pins give the same text."""
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pins.append(("torch", "2.13.0"))
    product = Component(
        name="serfer", version=serfer.__version__, type=ComponentType.APPLICATION, bom_ref="serfer",
        licenses=licences_of("License-Expression: Apache-2.0"),
    )  # fmt: skip
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"serfer {serfer.__version__} {sorted(pins)}"),
        metadata=BomMetaData(component=product),
        components=[component(name, version) for name, version in pins],
    )
    bom.register_dependency(product, bom.components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def component(name, version):
    purl = PackageURL("pypi", name=canonicalize_name(name), version=version)
    try:
        text = distribution(name).read_text("METADATA")
    except PackageNotFoundError:
        text = ""
    return Component(
        name=name, version=version, type=ComponentType.LIBRARY, bom_ref=str(purl), purl=purl, licenses=licences_of(text)
    )


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S607


if __name__ == "__main__":
    try:
        main()
    except ReleaseError as error:
        sys.exit(f"no release: {error}")
