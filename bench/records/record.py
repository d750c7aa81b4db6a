"""A record: the tables that a command gave, and what a reader needs to judge and to repeat them.

`docs/results/data/NAME.json` holds one. Command, kind, seeds, samples, layout and the names of files are written by
hand; the rest by `serfer bench results --run NAME`. A record is stale when one of its files has changed since.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from serfer.core.dataclass_codec import LATER, structure, unstructure
from serfer.core.errors import InputError
from serfer.files import read_text, write_whole
from serfer_bench.core.tables import Table
from serfer_bench.records.pictures import Picture

FOLDER: Final = Path("docs/results/data")
MOST_FILES: Final = 10
NOT_RECORDED: Final = ""
"""The digest of a file of which nobody knows how it was when the figures were made."""
_MAX_BYTES: Final = 1 << 20
_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.(\d+))?(?:e[+-]?\d+)?")
_LEAST_CHANGE: Final = 0.01
_BRACED: Final = re.compile(r"\{([^}]*)\}")
_TEXTS: Final = re.compile(r'\[\s+((?:"(?:[^"\\]|\\.)*"(?:,\s+)?)+)\s+\]')


@dataclass(frozen=True)
class Figures:
    """A table as its command gave it."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def shape(self) -> tuple[tuple[str, ...], int]:
        return self.head, len(self.rows)


@dataclass(frozen=True)
class Layout:
    """How a long table is shown: a row for each value of `rows`, a column for each of `column`.

    `cell` has names of columns in braces, as in `{value} ({over INFless})`; brackets with nothing in them are left out.
    """

    rows: tuple[str, ...]
    column: str
    cell: str

    def of(self, figures: Figures) -> Table:
        cells: dict[tuple[str, ...], dict[str, str]] = {}
        for row in figures.rows:
            named = dict(zip(figures.head, row, strict=True))
            shown = re.sub(r" (\(\)|\[\])", "", self.cell.format_map(named)).strip()
            cells.setdefault(tuple(named[key] for key in self.rows), {})[named[self.column]] = shown
        columns = [*dict.fromkeys(name for line in cells.values() for name in line)]
        body = [[*key, *(line.get(name, "") for name in columns)] for key, line in cells.items()]
        return Table([*self.rows, *columns], body)


@dataclass(frozen=True)
class Record:
    """The tables of a command; `files` are those that set its figures, by path, with their SHA-256.

    It took `elapsed_s`, and `processor_s` of its processes together; None where nobody took them.
    What is `cheap` takes a minute at most and gives the same figures everywhere: `make slow` runs it again.
    """

    command: str
    kind: Literal["measured", "emulated", "modelled", "simulated", "assumed"]
    seeds: str
    samples: str
    files: Mapping[str, str]
    date: str = ""
    commit: str = ""
    machine: str = ""
    tables: tuple[Figures, ...] = ()
    elapsed_s: float | None = field(default=None, metadata=LATER)
    processor_s: float | None = field(default=None, metadata=LATER)
    cheap: bool = field(default=False, metadata=LATER)
    layout: Layout | None = field(default=None, metadata=LATER)
    pictures: tuple[Picture, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        if not 1 <= len(self.files) <= MOST_FILES:
            raise InputError(f"files are 1 to {MOST_FILES}, those that set its figures, not {len(self.files)}")
        for table in self.tables:
            if any(len(row) != len(table.head) for row in table.rows):
                raise InputError("a row does not have as many cells as the head of its table")
            named = {*self.layout.rows, self.layout.column, *_BRACED.findall(self.layout.cell)} if self.layout else {""}
            if missing := named - {*table.head, ""}:
                raise InputError(f"layout names {', '.join(sorted(missing))}: there is no such column")

    @classmethod
    def read(cls, path: Path) -> Record:
        text = read_text(path, _MAX_BYTES)
        try:
            return structure(cls, json.loads(text), "record", error=InputError)
        except (InputError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        text = json.dumps(unstructure(self), indent=1, ensure_ascii=False)
        write_whole(path, (_TEXTS.sub(lambda found: f"[{_joined(found[1])}]", text) + "\n").encode())

    def stale(self, root: Path) -> list[str]:
        return [name for name, known in self.files.items() if digest(root / name) != known or known == NOT_RECORDED]

    def markdown(self, number: int, rows: int | None = None) -> str:
        """Write a table, from 1; raises InputError where there is none of that number.

        With `rows`, of a longer table that many of its rows, evenly spread, the first and the last among them.
        A record whose command was not run yet says so in place of its tables.
        """
        if not self.tables:
            return f"*Not run yet*: `{self.command}`."
        if not 1 <= number <= len(self.tables):
            raise InputError(f"table {number}: there are {len(self.tables)}")
        figures = self.tables[number - 1]
        table = self.layout.of(figures) if self.layout else Table(figures.head, figures.rows)
        if rows is None or rows >= len(table.body):
            return table.markdown()
        last = len(table.body) - 1
        shown = [table.body[round(index * last / max(rows - 1, 1))] for index in range(rows)]
        return f"{replace(table, body=shown).markdown()}\n\n{rows} of {len(table.body)} rows."

    def caption(self) -> str:
        """Say of what kind the figures are, from which command, and when; of measured ones also on which machine."""
        about = [f"*{self.kind.capitalize()}*: `{self.command}`", self.date]
        about += [self.machine] if self.kind in ("measured", "emulated") else []
        about += [f"commit {self.commit}"] if self.commit else []
        about += [f"seeds {self.seeds}"] if self.seeds not in ("", "none") else []
        about += [self.samples] if self.samples else []
        return f"{'; '.join(about)}."

    def draw(self, root: Path) -> list[str]:
        """Draw the pictures that do not show these figures, below a checkout `root`, and return their files."""
        about = f"{self.kind}: {self.command}; {self.date}; {self.machine}"
        return [picture.file for picture in self.pictures if picture.draw(self._shown, about, root)]

    def undrawn(self, root: Path) -> list[str]:
        return [picture.file for picture in self.pictures if not picture.shows(self._shown, root)]

    @property
    def _shown(self) -> list[Table]:
        return [Table(figures.head, figures.rows) for figures in self.tables]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else NOT_RECORDED


def read_records(root: Path) -> dict[str, Record]:
    files = sorted((root / FOLDER).glob("*.json"))
    if not files:
        raise InputError(f"{str(root / FOLDER)!r} has no records: run this in a checkout of SerFer, or give --checkout")
    return {path.stem: Record.read(path) for path in files}


def commit_of(root: Path) -> str:
    """Return the commit of a checkout, with + where files but the pages have changed; nothing where git has none."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and _git(root, "status", "--porcelain", "--", ".", ":!docs") else commit


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607
    except OSError:  # it is not installed
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def differences(before: Sequence[Figures], now: Sequence[Figures]) -> Iterator[str]:
    """Yield what differs between tables; numbers may by 1%, or by one in their last place."""
    if [one.shape for one in before] != [one.shape for one in now]:
        yield "the tables have other columns, or not as many rows"
        return
    for old, new in zip(before, now, strict=True):
        for line, again in zip(old.rows, new.rows, strict=True):
            for column, cell, found in zip(old.head, line, again, strict=True):
                if not _is_close(cell, found):
                    yield f"{', '.join(line[:3])}: {column} was {cell or 'empty'}, is {found or 'empty'}"


def _is_close(cell: str, found: str) -> bool:
    if _NUMBER.sub("0", cell) != _NUMBER.sub("0", found):
        return False
    pairs = zip(_NUMBER.finditer(cell), _NUMBER.finditer(found), strict=True)
    return all(_are_close(one[0], two[0], len(one[1] or "")) for one, two in pairs)


def _are_close(one: str, two: str, places: int) -> bool:
    values = [float(text.replace(",", "")) for text in (one, two)]
    most = max(_LEAST_CHANGE * abs(values[0]), 1.001 * 10.0**-places if places else 0.0)
    return abs(values[0] - values[1]) <= most


def _joined(texts: str) -> str:
    return re.sub(r",\n\s*", ", ", texts.strip())
