"""Compiles a package's directory ahead of time: called here, or run by another Python as `PYTHON compiling.py DIR`.

Lambda's code directory is read-only and packing changes times, so what is compiled is never checked against its source.
"""

import compileall
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path


def compile_directory(directory: str) -> None:
    """Compile all modules below a directory; one that cannot be compiled is left as it is."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(directory, quiet=2, stripdir=directory, invalidation_mode=unchecked)


def interpreter(runtime: str) -> Path | None:
    """Return a Python of the runtime's version that works here, None where there is none."""
    own = Path(sys.prefix) / runtime / "bin" / runtime  # what make setup brings
    for place in (str(Path(sys.executable).with_name(runtime)), str(own), shutil.which(runtime)):
        if place and (version_of(Path(place)) or "").startswith(f"{runtime.removeprefix('python')}."):
            return Path(place)
    return None


def version_of(python: Path) -> str | None:
    command = [str(python), "-I", "-S", "-c", "import compileall, sys; print('%d.%d.%d' % sys.version_info[:3])"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)  # noqa: S603
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    compile_directory(sys.argv[1])
