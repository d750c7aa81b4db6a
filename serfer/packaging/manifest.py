"""Contents of a package that runs in AWS: our packages, distributions, and the files that are never imported there."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from serfer.core.dataclass_codec import structure

_PRUNED_PARTS = frozenset({"tests", "__pycache__", "RECORD", "sboms", ".."})
_PRUNED_SUFFIXES = (".pyi", ".pyc", ".c", ".h", ".pxd", ".pyx", ".md")


@dataclass(frozen=True)
class Contents:
    """A package's contents; `pruned` and `needed` are path prefixes as in site-packages, and what is needed stays."""

    packages: tuple[str, ...]
    distributions: tuple[str, ...]
    pruned: tuple[str, ...]
    needed: tuple[str, ...]

    def keeps(self, name: str) -> bool:
        if not _PRUNED_PARTS.isdisjoint(name.split("/")) or name.endswith(_PRUNED_SUFFIXES):
            return False
        return name.startswith(self.needed) or not name.startswith(self.pruned)

    def our_files(self) -> set[tuple[str, Path]]:
        return {(name, path) for name, path in files_of(self.packages) if self.keeps(name)}


def _contents() -> dict[str, Contents]:
    """Read contents.toml; the other packages leave out what a worker's does, and more."""
    text = Path(__file__).with_name("contents.toml").read_text(encoding="utf-8")
    listed = {name: structure(Contents, value, "contents.toml") for name, value in tomllib.loads(text).items()}
    worker = listed.pop("worker")
    more = {name: replace(package, pruned=worker.pruned + package.pruned) for name, package in listed.items()}
    return {"worker": worker, **more}


def files_of(packages: Sequence[str]) -> set[tuple[str, Path]]:
    listed = set()
    for package in packages:
        spec, prefix = find_spec(package), package.replace(".", "/")
        if spec and spec.origin and not spec.submodule_search_locations:
            listed.add((f"{prefix}.py", Path(spec.origin)))
        for root in map(Path, (spec and spec.submodule_search_locations) or ()):
            walked = os.walk(root, followlinks=True)  # a checkout has packages as links
            files = (Path(folder, name) for folder, _, names in walked for name in names if not name.endswith(".pyc"))
            listed |= {(f"{prefix}/{path.relative_to(root).as_posix()}", path) for path in files}
    return listed


CONTENTS = _contents()
"""The contents of each package, by the name of its layer."""
WORKER = CONTENTS["worker"]
