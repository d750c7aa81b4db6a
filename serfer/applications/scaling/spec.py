"""The value of `variant_instances`: a pool of instances for all variants, or one for each instance type of theirs.

local, local:N                            processes here, at most 2 or N
static:URL,URL                            instances that are managed elsewhere
ec2:GROUP                                 an Auto Scaling group, within its own MaxSize
TYPE=ec2:GROUP,TYPE=static:URL|URL,...    one for each type that variants were registered for; TYPE=local:N, too
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serfer.control.selection.scaling.fleet_records import PoolTerms
from serfer.core.errors import UsageError
from serfer.fleet.provisioner_url import LOCAL, open_provisioner, split_specs

_OPTION: Final = "variant_instances"
_MOST_LOCAL: Final = 64
_DEFAULT_LOCAL: Final = 2  # each of them computes on all processors
_MOST_EC2: Final = 256  # and as many as the group's MaxSize says
_BOOT_S: Final = {LOCAL: 5.0, "ec2": 180.0, "static": 0.0}
_WANTED: Final = "it is local, local:N, static:URL,URL, ec2:GROUP, or one for each type: TYPE=ec2:GROUP,TYPE=local:N"


@dataclass(frozen=True)
class InstancePool:
    """A pool: of instances of a type, empty for all types, by a spec as `open_provisioner` takes it."""

    kind: str
    spec: str
    most: int

    @property
    def urls(self) -> tuple[str, ...]:
        if not self.spec.startswith("static:"):
            return ()
        return tuple(url.strip().rstrip("/") for url in self.spec.partition(":")[2].split(","))

    @property
    def terms(self) -> PoolTerms:
        """What scaling knows of it; how long a start takes is assumed: 5 s of a process here, 180 s in EC2."""
        kind = self.spec.partition(":")[0]
        return PoolTerms(self.most, _BOOT_S[kind], fixed=kind == "static")


def parse_instances(text: str) -> tuple[InstancePool, ...]:
    try:
        parts = split_specs(text.replace("|", ",") if text.startswith("static:") else text)
        pools = {kind or "": _pool(kind or "", spec) for kind, spec in parts}
    except UsageError as error:
        raise UsageError(str(error).replace("--instances", _OPTION)) from None
    if len(pools) < len(parts):
        raise UsageError(f"{_OPTION} {text[:80]!r}: a type is given twice")
    return tuple(pools.values())


def _pool(kind: str, spec: str) -> InstancePool:
    word, colon, argument = spec.partition(":")
    if word == LOCAL and colon:
        if not (argument.isascii() and argument.isdecimal() and 0 < int(argument) <= _MOST_LOCAL):
            raise UsageError(f"{_OPTION} {spec[:80]!r}: local:N has a number of processes, 1 to {_MOST_LOCAL}")
        return InstancePool(kind, LOCAL, int(argument))
    if word not in {LOCAL, "static", "ec2"}:
        raise UsageError(f"{_OPTION} {spec[:80]!r}: {_WANTED}")
    open_provisioner(spec, command=(sys.executable,), registry=Path())
    most = {LOCAL: _DEFAULT_LOCAL, "ec2": _MOST_EC2}.get(word, spec.count(",") + 1)
    return InstancePool(kind, spec, most)
