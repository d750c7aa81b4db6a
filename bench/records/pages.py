"""Pages whose tables are written from records.

    <!-- record: NAME table: 1 rows: 8 -->
    what `serfer bench results` writes
    <!-- end -->

The table is the record's first, second and so on: all of it, or as many of its rows, evenly spread. Below a page's
first table of a record stand its kind, command, date, commit, seeds and samples, and whether the record is stale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serfer.core.errors import InputError
from serfer.files import read_text, write_whole
from serfer_bench.records.record import Record

_MAX_BYTES: Final = 1 << 20
_PART: Final = re.compile(r"(<!-- record: ([\w-]+) table: (\d+)(?: rows: (\d+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_MARK: Final = re.compile(r"^<!-- (?:record:.*|end) -->$", re.MULTILINE)
_STALE: Final = re.compile(r" \*\*Stale\*\*\.$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page of a checkout, and the names of the records that it shows."""

    path: Path
    text: str

    @property
    def records(self) -> list[str]:
        return list(dict.fromkeys(found[2] for found in _PART.finditer(self.text)))

    def rendered(self, records: Mapping[str, Record], root: Path) -> str:
        captioned = set()

        def part(found: re.Match[str]) -> str:
            begin, name, number, rows, _, end = found.groups()
            if name not in records:
                raise InputError(f"{self.path}: there is no record {name!r}: there are {', '.join(records)}")
            record = records[name]
            try:
                table = record.markdown(int(number), int(rows) if rows else None)
            except InputError as error:
                raise InputError(f"{self.path}: {name}: {error}") from error
            if not record.tables or name in captioned:
                return f"{begin}\n{table}\n\n{end}"
            captioned.add(name)
            mark = " **Stale**." if record.stale(root) else ""
            gap = " " if table.endswith("rows.") else "\n\n"
            return f"{begin}\n{table}{gap}{record.caption()}{mark}\n\n{end}"

        if len(_MARK.findall(self.text)) != 2 * len(_PART.findall(self.text)):
            raise InputError(
                f"{self.path}: a comment that begins a table lacks its <!-- end -->, or has none before it"
            )
        return _PART.sub(part, self.text)

    def differs(self, records: Mapping[str, Record], root: Path) -> bool:
        return _STALE.sub("", self.rendered(records, root)) != _STALE.sub("", self.text)

    def write(self, text: str, root: Path) -> bool:
        if text == self.text:
            return False
        write_whole(root / self.path, text.encode())
        return True


def read_pages(root: Path) -> list[Page]:
    paths = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    pages = [Page(path.relative_to(root), read_text(path, _MAX_BYTES)) for path in paths if path.is_file()]
    return [page for page in pages if _MARK.search(page.text)]


def chosen(pages: Sequence[Page], name: str) -> list[Page]:
    found = [page for page in pages if name in (page.path.stem, page.path.name, str(page.path))]
    if not found:
        raise InputError(
            f"no page {name!r:.80} has tables of records: {', '.join(str(page.path) for page in pages)} have"
        )
    return found
