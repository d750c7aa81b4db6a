"""Cache directories of tests, with the workers' dependencies in them."""

import fcntl
import os
import shutil

from serfer.packaging.bundle import dependencies


def new_cache(factory):
    """Return a cache directory of the caller's own; `factory` is pytest's of temporary directories.

    The dependencies take seconds to assemble and never change, so those of all pytest processes are the same files.
    """
    cache, base = factory.mktemp("cache"), factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assembled = dependencies(shared)
    shutil.copytree(assembled, cache / "dependencies" / assembled.name, copy_function=os.link)
    return cache
