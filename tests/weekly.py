"""Runs what is exhaustive in shards that can be continued: `make weekly`, or `.venv/bin/python tests/weekly.py [PART]`.

A shard is a file's tests that are marked `weekly`, or the property tests from a seed of five with 200 examples each, or
twice as many as they ask for. Cases are drawn by the day (`TEST_SEED=20261127` repeats one). A shard that passed is not
run again at the same commit and with the same changes to it: `.weekly/` says which did, and `make weekly-clean` forgets
it. With PART, only shards with that in their name are run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

PROJECT = Path(__file__).parents[1]
STATE = PROJECT / ".weekly"
SEEDS = (1, 2, 3, 4, 5)
MINUTES = 60
"""What a shard may take."""
_PROPERTIES = "hypothesis and not weekly and not deploy and not browser"


@dataclass(frozen=True)
class Shard:
    """Tests that are run at once: `options` of pytest, and variables that it has besides this process's."""

    name: str
    options: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> bool:
        limits = ("-n", "2", "--dist", "worksteal", "--timeout", str(60 * MINUTES))
        command = [sys.executable, "-m", "pytest", *limits, *self.options]
        variables = {"TEST_SEED": day()} | os.environ | self.variables
        return subprocess.run(command, cwd=PROJECT, env=variables, check=False).returncode == 0


def shards() -> list[Shard]:
    """Return all shards: files by name, then the seeds."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "weekly"]
    listed = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False).stdout
    files = sorted({name for line in listed.splitlines() for name, colon, _ in [line.partition(":")] if colon})
    seeds = [
        Shard(f"properties-{seed}", ("-m", _PROPERTIES, f"--hypothesis-seed={day()}{seed}"), {"TEST_EXAMPLES": "2"})
        for seed in SEEDS
    ]
    return [*(Shard(name, ("-rP", "-m", "weekly", name)) for name in files), *seeds]


def day() -> str:
    """Return the seed of what is drawn: that of the environment, or today's date in UTC."""
    return os.environ.get("TEST_SEED") or datetime.now(UTC).strftime("%Y%m%d")


def commit() -> str:
    """Name the state of the files: the commit, and a digest of what was changed since."""
    head = _git("rev-parse", "--short=12", "HEAD").decode().strip()
    added = _git("ls-files", "-z", "--others", "--exclude-standard").decode().split("\0")[:-1]
    changes = b"".join([_git("diff", "HEAD"), *((PROJECT / name).read_bytes() for name in added)])
    return f"{head}-{hashlib.sha256(changes).hexdigest()[:12]}" if changes else head


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=PROJECT, stdout=subprocess.PIPE, check=True).stdout  # noqa: S607


def run(wanted: Sequence[Shard], passed: Path, say: Callable[[str], None]) -> list[str]:
    failed = []
    for number, shard in enumerate(wanted, 1):
        note = passed / f"{shard.name.replace('/', '.')}.passed"
        if note.exists():
            say(f"[{number}/{len(wanted)}] {shard.name}: passed before, in {note.read_text()} minutes")
            continue
        say(f"[{number}/{len(wanted)}] {shard.name}")
        began = time.monotonic()
        good = shard.run()
        minutes = (time.monotonic() - began) / 60
        if minutes > MINUTES:
            say(f"{shard.name} took {minutes:.0f} minutes, more than {MINUTES}: make two files of it")
        if good:
            passed.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{minutes:.1f}")
        else:
            failed.append(shard.name)
    return failed


def main(part: str = "") -> int:
    """Run all shards, or those with `part` in their names; return the exit code."""
    wanted = [shard for shard in shards() if part in shard.name]
    if not wanted:
        print(f"no shard has {part!r} in its name", file=sys.stderr)  # noqa: T201 - what a script says
        return 2
    failed = run(wanted, STATE / commit(), lambda line: print(line, flush=True))  # noqa: T201 - as above
    print(f"failed: {', '.join(failed)}" if failed else f"all {len(wanted)} shards passed")  # noqa: T201 - as above
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
