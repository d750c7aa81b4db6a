"""The value of `--variant-instances`: a pool of instances for all variants, or one for each instance type of theirs.

local, local:N                            processes here, at most 2 or N
static:URL,URL                            instances that are managed elsewhere
ec2:GROUP                                 an Auto Scaling group, within its own MaxSize
TYPE=ec2:GROUP,TYPE=static:URL|URL,...    one for each type that variants were registered for; TYPE=local:N, too
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from serfer.control.selection.scaling.fleet_records import PoolTerms
from serfer.core.errors import UsageError
from serfer.fleet.provisioner_url import LOCAL, MAX_TEXT, check_instances, parts_by_type

_OPTION: Final = "--variant-instances"
_LOCAL_N: Final = re.compile(r"(^|=)local:[1-9]\d?(?=,|$)", re.ASCII)
_MOST_LOCAL: Final = 64
_DEFAULT_LOCAL: Final = 2  # each of them computes on all processors
_MOST_EC2: Final = 256  # and as many as the group's MaxSize says
_BOOT_S: Final = {LOCAL: 5.0, "ec2": 180.0, "static": 0.0}


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
    """Return the pools that a value of `--variant-instances` names; raises UsageError."""
    plain = _LOCAL_N.sub(r"\1local", text[: MAX_TEXT + 1])
    try:
        check_instances(plain)
    except UsageError as error:
        raise UsageError(str(error).replace("--instances", _OPTION)) from None
    pools: dict[str, InstancePool] = {}
    for kind, spec in parts_by_type(text):
        if (kind or "") in pools:
            raise UsageError(f"{_OPTION}: {str(kind)[:80]!r} is given twice")
        pools[kind or ""] = InstancePool(
            kind or "", spec.partition(":")[0] if spec.startswith(LOCAL) else spec, _most(spec)
        )
    return tuple(pools.values())


def _most(spec: str) -> int:
    word, _, argument = spec.partition(":")
    if word == "static":
        return spec.count(",") + 1
    if word != LOCAL:
        return _MOST_EC2
    if int(argument or _DEFAULT_LOCAL) > _MOST_LOCAL:
        raise UsageError(f"{_OPTION} {spec}: local:N has a number of processes, 1 to {_MOST_LOCAL}")
    return int(argument or _DEFAULT_LOCAL)
