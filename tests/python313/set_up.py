"""Sets up Debian's python3.13 without touching the system: `python set_up.py DIRECTORY` makes DIRECTORY/bin/python3.13.

`python set_up.py DIRECTORY ENVIRONMENT` makes a virtual environment of it, too, with SerFer and what runs its tests,
from wheels alone: ENVIRONMENT/bin/python.

Tests run what is deployed under the Python that Lambda has. Its packages come by apt from this machine's own sources,
with the suite's name replaced, and are only unpacked; the C library comes with them. Nothing of it needs root. Where it
cannot be done, a line on stderr says why, the exit code is 0, and the tests that need it are skipped.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = "trixie"
PYTHON = "python3.13"
LIBRARY = Path("root", "usr", "lib", PYTHON)  # the standard one
PACKAGES = (
    *("libbz2-1.0", "libc6", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libncursesw6", "libpython3.13-minimal"),
    *("libpython3.13-stdlib", "libsqlite3-0", "libssl3t64", "libstdc++6", "libtinfo6", "libuuid1", "libzstd1"),
    *("python3.13-minimal", "zlib1g"),
)
_WRAPPER = """\
#!/bin/sh
# Debian's Python with its own C library; it finds its modules through the link ../lib.
here=${{0%/*}}/..
exec "$here/root/{loader}" --library-path "$here/root/{libraries}" --argv0 "$0" "$here/root/usr/bin/{python}" "$@"
"""
PROJECT = Path(__file__).parents[2]
RUNS_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "redis", "zarr", "ruff")
"""What tests import besides SerFer and its extras; pytest's plug-ins are named in pyproject.toml."""
EXTRAS = "client,local,map,deploy,pictures"
_TIMEOUT_S = 600


class CannotError(Exception):
    """It cannot be set up here, for a reason of one line."""


def main(target: Path, environment: Path | None = None) -> None:
    """Make `target`, unless it is there and works, and the environment, if one is named."""
    try:
        if not _works(target):
            _make(target)
        if environment is not None:
            _install(target, environment)
    except (CannotError, OSError, subprocess.TimeoutExpired) as error:
        print(f"{PYTHON} is not set up, and the tests that need it will be skipped: {error}", file=sys.stderr)  # noqa: T201


def _make(target: Path) -> None:
    for tool in ("apt-get", "dpkg", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise CannotError(f"{tool} is not on PATH")
    sources = _sources()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{PYTHON}-", dir=target.parent) as scratch:
        fresh = Path(scratch) / "fresh"
        (fresh / "bin").mkdir(parents=True)
        for package in _downloaded(Path(scratch), sources):
            _run("dpkg-deb", "--extract", str(package), str(fresh / "root"))
        _wrap(fresh)
        _compile(fresh)
        if not _works(fresh):
            raise CannotError("what was unpacked does not run")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)


def _sources() -> str:
    """Return this machine's own main archive as a .sources file for the suite."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    found = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")) if found else ():
        for stanza in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
            suites = re.search(r"^Suites:\s*(.+)$", stanza, re.MULTILINE)
            if suites and found and suites[1].split()[0] == found[1]:
                return stanza.replace(suites[0], f"Suites: {SUITE}") + "\n"
    raise CannotError(f"no .sources file of apt names Debian's archive, so there is no place to get {SUITE} from")


def _downloaded(scratch: Path, sources: str) -> list[Path]:
    """Let apt fetch the packages, checked by Debian's signature, with lists of its own."""
    for part in ("lists/partial", "cache/archives/partial", "parts", "packages"):
        (scratch / part).mkdir(parents=True)
    (scratch / "suite.sources").write_text(sources, encoding="utf-8")
    options = {
        "Dir::Etc::sourcelist": scratch / "suite.sources",
        "Dir::Etc::sourceparts": scratch / "parts",
        "Dir::State::lists": scratch / "lists",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "",  # nobody else could write here
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *given, "--quiet", "update")
    _run("apt-get", *given, "--quiet", "download", *(f"{name}/{SUITE}" for name in PACKAGES), cwd=scratch / "packages")
    return sorted((scratch / "packages").glob("*.deb"))


def _wrap(fresh: Path) -> None:
    root = fresh / "root"
    loaders = sorted([*root.glob("usr/lib64/ld-linux*"), *root.glob("usr/lib/*/ld-linux*")])
    libraries = sorted(root.glob("usr/lib/*/libc.so.6"))
    if not loaders or not libraries:
        raise CannotError("the C library's package has another shape than expected")
    text = _WRAPPER.format(
        loader=loaders[0].relative_to(root), libraries=libraries[0].parent.relative_to(root), python=PYTHON
    )
    wrapper = fresh / "bin" / PYTHON
    wrapper.write_text(text, encoding="utf-8")
    wrapper.chmod(0o755)
    (fresh / "lib").symlink_to("root/usr/lib")


def _install(target: Path, environment: Path) -> None:
    """Make a virtual environment, and let this interpreter's pip install into it."""
    text = (target / "bin" / PYTHON).read_text(encoding="utf-8")
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    text = text.replace('"$0"', shlex.quote(str(python))).replace("here=${0%/*}/..", f"here={shlex.quote(str(target))}")
    python.write_text(text, encoding="utf-8")
    python.chmod(0o755)
    (environment / "pyvenv.cfg").write_text(f"home = {target / 'bin'}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--quiet")
    pinned = ("--only-binary=:all:", "--constraint", str(PROJECT / "requirements.txt"))
    _run(*pip, *pinned, "setuptools", "hatchling", *RUNS_TESTS)
    _run(*pip, *pinned, "--no-build-isolation", "--editable", f"{PROJECT}[{EXTRAS}]")
    _run(*pip, *pinned, "--no-build-isolation", "--no-deps", "--editable", f"{PROJECT / 'bench'}")


def _compile(fresh: Path) -> None:
    """Compile the standard library, as it is in Lambda, and as Debian's own installation would."""
    command = [fresh / "bin" / PYTHON, "-I", "-S", "-m", "compileall", "-q", fresh / LIBRARY]
    _run(*map(str, command))


def _works(target: Path) -> bool:
    """Return whether it is compiled, runs, and has what is needed."""
    if not (target / LIBRARY / "json" / "__pycache__").is_dir():
        return False
    code = "import compileall, ctypes, hashlib, sqlite3, ssl, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [target / "bin" / PYTHON, "-I", "-S", "-c", code], capture_output=True, check=False, timeout=60
        )
    except OSError:
        return False
    return done.stdout.strip() == PYTHON.removeprefix("python").encode()


def _run(*command: str, cwd: Path | None = None) -> None:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-300:]
        raise CannotError(f"{command[0]} failed: {re.sub(r'//[^/@ ]*@', '//', words)}")


if __name__ == "__main__":
    main(*(Path(name).absolute() for name in sys.argv[1:]))
