"""Lambda's runtime client for python3.13, which `make setup` cannot install into a Python 3.11."""

import platform
from pathlib import Path

from serfer.build_cache import assembled, in_use
from serfer.sam.build.wheels import MACHINES, unpack, wheels

_LOCK = Path(__file__).with_name("client.txt")


def runtime_client(cache: Path) -> Path:
    """Return a directory below `cache` with awslambdaric and what it needs, as /var/runtime has it."""
    architecture = next(name for name, machine in MACHINES.items() if machine == platform.machine())
    found = wheels(_LOCK, "python3.13", architecture, cache)
    target = cache / "runtime" / "-".join(["cp313", *(f"{wheel.name}-{wheel.version}" for wheel in found)])
    if not in_use(target):
        with assembled(target) as directory:
            for wheel in found:
                unpack(wheel, directory, lambda _: True)
    return target
