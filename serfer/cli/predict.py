"""`serfer predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import typer

from serfer.cli.classify import data_of, names_of
from serfer.cli.shared.ask_commands import PredictCommand
from serfer.cli.shared.display import plain
from serfer.cli.shared.network_options import FileOptions
from serfer.cli.shared.options import (
    BY_ARGUMENT,
    network_among,
    opened,
    plan_directory,
    print_json,
)
from serfer.cli.shared.report import print_report
from serfer.cli.shared.terminal import complain, out
from serfer.core.detections import coco
from serfer.core.errors import InputError, SerferError, UsageError
from serfer.core.report import BOXES, CLASSES
from serfer.files import write_whole
from serfer.images import read_image, upright_image
from serfer.pictures.boxes import PICTURES, drawn
from serfer.pipeline.prediction import kind_of
from serfer.plan_directory import load_plan
from serfer.settings import load_settings
from serfer.wiring.options import workers_of

if TYPE_CHECKING:
    from serfer.core.plan import ImageLimits, Plan
    from serfer.core.report import PredictedImage, PredictedOutput
    from serfer.pipeline.blocking import Pipeline

_SHOWN = 8  # values of a vector


def predict(options: PredictCommand, _context: typer.Context) -> None:
    """Ask a network about images, and print or write what it answers."""
    images, plan = network_among(options.images, options.plan)
    names = names_of(images)
    if options.as_coco and options.as_json:
        raise UsageError("--coco and --json are two forms of one answer: give one of them")
    file = FileOptions.read(options)
    directory = plan_directory(plan, options.model, options.stack, file, options.workers, choices=BY_ARGUMENT)
    _check_boxes(
        load_plan(directory), options.draw, "--coco" if options.as_coco else "--options.draw" if options.draw else ""
    )
    target = _Drawings(options.draw, len(names), load_settings().image_limits()) if options.draw else None
    found: list[PredictedImage] = []
    failures: list[SerferError] = []
    with opened(
        directory, options.store, options.workers, options.driver, options.object_store, 0.0, options.stack
    ) as pipeline:
        kind = kind_of(pipeline.plan)
        for name in names:
            try:
                data = data_of(name)
                [image] = pipeline.predict(
                    [data],
                    names=[name],
                    top_k=options.top_k,
                    min_score=options.min_score,
                    deadline_s=options.deadline_ms / 1000,
                )
                drawing = target.write(data, image) if target else None
            except SerferError as error:
                complain(error)
                failures.append(error)
                if options.as_json:
                    print_json({"kind": kind, "images": [{"name": name}], "error": str(error)})
                continue
            found.append(image)
            if options.as_json:
                print_json(_object(pipeline, image, kind))
            elif not options.as_coco:
                _print_answer(pipeline, image, kind, workers_of(options.workers, options.stack, "local"))
                if drawing:
                    out.print(f"wrote {plain(str(drawing))}\n", soft_wrap=True)
        if options.as_coco:
            print_json(asdict(coco(found, pipeline.plan.labels)))
    if failures:
        raise typer.Exit(failures[0].exit_code)


@dataclass(frozen=True)
class _Drawings:
    """Where pictures go: a file, or a folder where there are several images."""

    path: Path
    images: int
    limits: ImageLimits
    written: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.path.suffix.lower() not in PICTURES:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                reason = getattr(error, "strerror", None) or error
                raise InputError(f"{str(self.path)!r} cannot be a folder for pictures: {reason}") from error
        elif self.images != 1:
            raise UsageError(f"--draw {self.path} is one file, and there are {self.images} images: give a folder")

    def write(self, data: bytes | Path, image: PredictedImage) -> Path:
        """Draw an image's boxes, and return the file."""
        path = self.path
        if path.suffix.lower() not in PICTURES:
            stem = "stdin" if isinstance(data, bytes) else PurePath(image.name).stem
            path = self._free(stem)
            if path.exists():
                raise InputError(f"{path} exists: give --draw another folder")
        whole = data if isinstance(data, bytes) else read_image(data, self.limits)
        write_whole(path, drawn(upright_image(whole, image.name, self.limits), image.boxes, path.suffix.lower()))
        self.written.add(path)
        return path

    def _free(self, stem: str) -> Path:
        """Return a picture's place: images that differ in folder or suffix alone are numbered from the second on."""
        names = (stem, *(f"{stem}-{number}" for number in range(2, self.images + 1)))
        return next(place for name in names if (place := self.path / f"{name}{PICTURES[0]}") not in self.written)


def _check_boxes(plan: Plan, draw: Path | None, option: str) -> None:
    """Refuse options for boxes of a plan that gives none, before anything starts."""
    if option and plan.detection is None:
        raise UsageError(f"{option} is for boxes: describe the plan with --output boxes (docs/how-to/detect.md)")
    if draw and draw.suffix and draw.suffix.lower() not in PICTURES and not draw.is_dir():
        raise UsageError(f"--draw {draw} is not a picture's name: it should end in {', '.join(PICTURES)}")


def _object(pipeline: Pipeline, image: PredictedImage, kind: str) -> dict[str, Any]:
    report = pipeline.last_report.as_dict()
    return {"kind": kind, **report, "images": [image.as_dict(kind)]}


def _print_answer(pipeline: Pipeline, image: PredictedImage, kind: str, workers: str) -> None:
    plan = pipeline.plan
    out.print(f"[bold]{plain(PurePath(image.name).name)}[/]  {plain(plan.model)}, weights: {plain(plan.weights)}")
    for line in _lines(image, kind):
        out.print(line, soft_wrap=True)
    print_report(pipeline.last_report, plan, workers)
    out.print()


def _lines(image: PredictedImage, kind: str) -> Sequence[str]:
    if kind == CLASSES:
        return [f"  {prediction.score:8.2%}  {plain(prediction.label)}" for prediction in image.predictions]
    if kind == BOXES:
        lines = [f"  {box.score:8.2%}  {plain(box.label)}  {_place(box.box)}" for box in image.boxes]
        return lines or ["  no boxes"]
    return [
        f"  {plain(output.name)}  {'x'.join(map(str, output.shape))} {output.type}  {_values(output)}"
        for output in image.outputs
    ]


def _place(box: tuple[float, float, float, float]) -> str:
    left, top, right, bottom = box
    return f"{right - left:.0f} x {bottom - top:.0f} at {left:.0f}, {top:.0f}"


def _values(output: PredictedOutput) -> str:
    if not output.values:
        return "" if 0 in output.shape else "(serfer run writes it to a file)"
    shown = (f"{value:.5g}" if isinstance(value, float) else str(value) for value in output.values[:_SHOWN])
    return " ".join(shown) + (" ..." if len(output.values) > _SHOWN else "")
