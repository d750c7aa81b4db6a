"""Many images, one after the other, each as one is: what fails is listed, and the others go on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from serfer.core.dataclass_codec import structure
from serfer.core.errors import IncompleteMapError, InputError, PlanError, SerferError, UnavailableError, UsageError
from serfer.files import read_text, write_whole
from serfer.mapping.estimate import Estimate
from serfer.mapping.image_job import Mapper
from serfer.mapping.image_list import MapItem, read_list
from serfer.mapping.report import MapReport
from serfer.plan_directory import file_sha256
from serfer.raster.objects import Bucket
from serfer.raster.place import S3Place, parse_place
from serfer.raster.results.parts import reserved

MANIFEST, RETRY = "manifest.jsonl", "retry.txt"
_RUNNING = ".running"  # held while a process maps into the folder
_UNAVAILABLE_IN_A_ROW = 3
_MOST_BYTES = 1 << 30


@dataclass
class ManyReport:
    """What became of many images: `skipped` had their results already, `untried` came after what ended the map.

    With `at_ceiling` that was that the dollars were spent.
    """

    done: list[MapReport] = field(default_factory=list)
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    cost_usd: float = 0.0
    at_ceiling: bool = False


@dataclass(frozen=True)
class ManyImages:
    """Maps images into a folder or prefix `out`, by a mapper that does not refuse each of them by its dollars."""

    mapper: Mapper
    out: str
    report: Callable[[MapReport], None]

    @property
    def retry_path(self) -> Path:
        return self._file(RETRY)

    def _file(self, name: str) -> Path:
        where = parse_place(self.out)
        if isinstance(where, S3Place):
            return Path(f"{where.bucket}-{where.key.strip('/').replace('/', '-')}-{name}")
        return where / name

    def estimates(self, items: Sequence[MapItem]) -> Iterator[tuple[MapItem, Estimate | SerferError]]:
        manifest = Manifest(self._file(MANIFEST))
        for item in items:
            try:
                if not self._is_done(item, manifest):
                    yield item, self.mapper.estimate(item.image, item.result, folder=True)
            except SerferError as error:
                yield item, error

    def check_dollars(self, items: Sequence[MapItem]) -> None:
        ceiling = self.mapper.options.max_cost_usd
        if ceiling is None or self.mapper.options.force:
            return
        found = [estimate for _, estimate in self.estimates(items) if isinstance(estimate, Estimate)]
        usd = sum(estimate.usd for estimate in found)
        if usd > ceiling:
            raise UsageError(
                f"{len(found):,} images are predicted to cost ${usd:.6f}, more than --max-cost-usd {ceiling:g}: allow "
                "more, or force=true to start, which stops at that ceiling"
            )

    def _is_done(self, item: MapItem, manifest: Manifest) -> bool:
        done = not self.mapper.options.restart and manifest.knows(item.image)
        files = self.mapper.places(item.result)
        return done and manifest.is_done(item.image, item.result, files, self.mapper.job_of(item.image))

    def run(self, items: Sequence[MapItem]) -> ManyReport:
        """Map what the manifest has not; raises UnavailableError where several images in a row raised it."""
        if isinstance(where := parse_place(self.out), Path):
            where.mkdir(parents=True, exist_ok=True)
        with reserved(self._file(_RUNNING), self.out):
            return self._run(items)

    def _run(self, items: Sequence[MapItem]) -> ManyReport:
        manifest, report, in_a_row = Manifest(self._file(MANIFEST)), ManyReport(), 0
        self._check_list(items, manifest)
        try:
            for number, item in enumerate(items):
                try:
                    self._map_one(item, manifest, report)
                    in_a_row = 0
                except IncompleteMapError as error:
                    self._note_failure(item, manifest, report, error)
                    if error.report.stopped:
                        report.at_ceiling = True
                        report.untried += [left.image for left in items[number + 1 :]]
                        break
                except SerferError as error:
                    self._note_failure(item, manifest, report, error)
                    in_a_row = in_a_row + 1 if isinstance(error, UnavailableError) else 0
                    if in_a_row >= _UNAVAILABLE_IN_A_ROW:
                        report.untried += [left.image for left in items[number + 1 :]]
                        raise
                except KeyboardInterrupt:
                    report.untried += [left.image for left in items[number:]]
                    there = len(report.done) + report.skipped
                    self.mapper.watcher.note(
                        f"{there:,} of {len(items):,} images are mapped, those that are left are listed in "
                        f"{self.retry_path}: run the same command again, it goes on with them"
                    )
                    raise
        finally:
            report.cost_usd = self.mapper.spending.spent
            self._list(report)
        self._upload()
        return report

    def _check_list(self, items: Sequence[MapItem], manifest: Manifest) -> None:
        images = {item.image for item in items}
        for name in read_list(self.retry_path) if self.retry_path.exists() else ():
            if name not in images and not manifest.knows(name):
                raise InputError(f"{self.retry_path} lists no images of this map: move it, or choose another --out")

    def _map_one(self, item: MapItem, manifest: Manifest, report: ManyReport) -> None:
        if self._is_done(item, manifest):
            report.skipped += 1
            return
        job = self.mapper.job_of(item.image)
        if isinstance(where := parse_place(item.result), Path):
            where.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()

        def finished(one: MapReport) -> None:
            """Note a result before its parts are deleted: whatever stops it in between, the result is known."""
            seconds, check = time.monotonic() - started, result_check(self.mapper.places(item.result))
            manifest.add(ManifestLine(item.image, item.result, job, seconds, one.cost_usd, check=check))

        one = self.mapper.map(item.image, item.result, finished)
        report.done.append(one)
        self.report(one)

    def _note_failure(self, item: MapItem, manifest: Manifest, report: ManyReport, error: SerferError) -> None:
        report.failed[item.image] = str(error)
        spent = error.report.cost_usd if isinstance(error, IncompleteMapError) else 0.0
        manifest.add(ManifestLine(item.image, item.result, "", 0.0, spent, error=str(error)))
        self.mapper.watcher.note(str(error))

    def _list(self, report: ManyReport) -> None:
        left = [*report.failed, *report.untried]
        if left:
            write_whole(self.retry_path, "".join(f"{name}\n" for name in left).encode())
        else:
            self.retry_path.unlink(missing_ok=True)

    def _upload(self) -> None:
        where = parse_place(self.out)
        manifest = self._file(MANIFEST)
        if isinstance(where, S3Place) and manifest.exists():
            place = S3Place(where.bucket, f"{where.key.rstrip('/')}/{MANIFEST}", where.region, where.endpoint)
            Bucket(place).upload(manifest, manifest.with_suffix(".upload"))


@dataclass(frozen=True)
class ManifestLine:
    """What became of an image; `job` is what its result follows from, `check` tells the result from another one.

    `error` is empty where the result is whole; `check` is then its SHA-256, or the ETag of an object.
    """

    image: str
    result: str
    job: str
    seconds: float
    cost_usd: float
    error: str = ""
    check: str = ""


class Manifest:
    """A file of JSON lines, the last one of an image counting; a line that a killed process cut off does not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _read_lines(path)

    def knows(self, image: str) -> bool:
        return image in self._lines

    def is_done(self, image: str, result: str, files: Sequence[str], job: str) -> bool:
        line = self._lines.get(image)
        if line is None or line.error or (line.result, line.job) != (result, job):
            return False
        return bool(line.check) and line.check == result_check(files)

    def add(self, line: ManifestLine) -> None:
        self._lines[line.image] = line
        with self.path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            cut = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write((b"\n" if cut else b"") + json.dumps(asdict(line)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def result_check(files: Sequence[str]) -> str:
    checks = [_file_check(file) for file in files]
    return " ".join(checks) if all(checks) else ""


def _file_check(result: str) -> str:
    where = parse_place(result)
    if isinstance(where, S3Place):
        head = Bucket(where).head()
        return f"etag {head.etag}" if head else ""
    return f"sha256 {file_sha256(where)}" if where.is_file() else ""


def _read_lines(path: Path) -> dict[str, ManifestLine]:
    if not path.exists():
        return {}
    lines = {}
    for row in read_text(path, _MOST_BYTES).splitlines():
        try:
            line = structure(ManifestLine, json.loads(row), str(path))
        except (ValueError, RecursionError, PlanError):
            continue  # cut off: the image is mapped again, and a result that is there is not replaced
        lines[line.image] = line
    return lines
