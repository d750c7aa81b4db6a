"""`serfer predict`, and `serfer classify`, which answers with classes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import typer

from serfer.cli.shared.ask_commands import ClassifyCommand, PredictCommand
from serfer.cli.shared.asking import (
    check_some,
    data_of,
    made_folder,
    names_of,
    print_head,
    print_report,
    query_images,
    yielding,
)
from serfer.cli.shared.display import plain
from serfer.cli.shared.options import BY_ARGUMENT, demo_model, network_among, opened, plan_directory, print_json
from serfer.cli.shared.schema import settings_of
from serfer.cli.shared.terminal import complain, err, out
from serfer.control.throttle import Thresholds
from serfer.core.detections import coco
from serfer.core.errors import InputError, UsageError
from serfer.core.exactness import difference
from serfer.core.plan import ACTIVATIONS
from serfer.core.plan.answers import as_answer
from serfer.core.report import BOXES, CLASSES, ImageAnswer, PredictedImage
from serfer.files import write_whole
from serfer.images import read_image, upright_image
from serfer.offline.load_source import service_loads
from serfer.pictures.boxes import PICTURES, drawn
from serfer.pipeline.prediction import kind_of
from serfer.pipeline.reference import original
from serfer.pipeline.result import Result
from serfer.pipeline.trace import check_trace, write_trace
from serfer.plan_directory import is_network, load_plan
from serfer.splitter.network.zoo import ZOO
from serfer.wiring.options import default_workers, workers_of

if TYPE_CHECKING:
    from serfer.core.exactness import Difference
    from serfer.core.plan import ImageLimits, Plan
    from serfer.core.report import PredictedOutput
    from serfer.pipeline.blocking import Pipeline
    from serfer.pipeline.reference import Run

_SHOWN = 8  # values of a vector


def predict(options: ClassifyCommand, context: typer.Context) -> None:
    images, given = network_among(options.images, options.plan, options.network)
    names, model = names_of(images), demo_model(options.demo, options.model, given) or options.model
    boxes = options if isinstance(options, PredictCommand) else PredictCommand(images=options.images)
    if boxes.as_coco and boxes.as_json:
        raise UsageError("--coco and --json are two forms of one answer: give one of them")
    settings = settings_of(context)
    sources = service_loads(options.yield_to, settings.yield_key.get_secret_value())
    if options.trace is not None:
        check_trace(options.trace)
    if model is not None or (given is not None and is_network(given)):
        check_some(names, settings)  # a plan is made first: what is wrong with images is said before that
    options.check_workers()
    ways = f"{BY_ARGUMENT}; or --demo"
    directory = plan_directory(given, model, options.stack, options, options.workers, choices=ways)
    given_of_boxes = {"--coco": boxes.as_coco, "--draw": boxes.draw, "--min-score": boxes.min_score is not None}
    plan = load_plan(directory)
    _check_boxes(plan, boxes.draw, next((option for option, value in given_of_boxes.items() if value), ""))
    if isinstance(options, PredictCommand) and options.top_k != ClassifyCommand.top_k and kind_of(plan) != CLASSES:
        complain(f"--top-k is for classes: {plan.model} gives other outputs, all of them")
    drawings = _Drawings(boxes.draw, len(names), settings.image_limits()) if boxes.draw else None
    workers = workers_of(options.workers, options.stack, default_workers([directory], options.engine, settings))
    limits = Thresholds(options.yield_utilisation, options.yield_latency)
    with opened(directory, options, workers, options.cache_s) as pipeline, yielding(pipeline, sources, limits) as turn:
        whole = original(pipeline.plan, directory) if options.compare else None
        questions = _Questions(options, boxes, pipeline, workers, turn, drawings, whole)
        code = query_images(names, questions.ask, questions.failed if options.as_json else None)
    if boxes.as_coco:
        print_json(asdict(coco(questions.found, pipeline.plan.labels)))
    if options.demo and not options.as_json:
        _print_demo(pipeline.plan)
    if options.trace is not None and questions.traced:
        write_trace(options.trace, questions.traced)
        place = plain(str(options.trace))
        err.print(f"wrote {place}: open it in chrome://tracing or at https://ui.perfetto.dev", soft_wrap=True)
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True)
class _Questions:
    options: ClassifyCommand
    boxes: PredictCommand
    pipeline: Pipeline
    workers: str
    turn: Callable[[], AbstractContextManager[None]]
    drawings: _Drawings | None
    whole: Run | None
    found: list[PredictedImage] = field(default_factory=list)
    traced: list[tuple[str, Result]] = field(default_factory=list)

    @property
    def classifies(self) -> bool:
        return not isinstance(self.options, PredictCommand)

    @property
    def kind(self) -> str:
        return CLASSES if self.classifies else kind_of(self.pipeline.plan)

    def ask(self, name: str) -> None:
        data, options, pipeline = data_of(name), self.options, self.pipeline
        with self.turn():
            image = self._answer(name, data)
        drawing = None
        if isinstance(image, PredictedImage):
            drawing = self.drawings.write(data, image) if self.drawings else None
            self.found.append(image)
        if options.trace is not None:
            self.traced.append((name, pipeline.last))
        if options.as_json:
            print_json(self._object(image))
        elif not self.boxes.as_coco:
            answer = as_answer(pipeline.last.outputs)
            self._print(image, difference(answer, self.whole(pipeline.pixels([data]))) if self.whole else None)
            if drawing:
                out.print(f"wrote {plain(str(drawing))}\n", soft_wrap=True)

    def failed(self, name: str) -> dict[str, Any]:
        if self.classifies:
            return {"images": [{"name": name, "predictions": []}]}
        return {"kind": self.kind, "images": [{"name": name}]}

    def _answer(self, name: str, data: bytes | Path) -> ImageAnswer:
        options, deadline_s = self.options, self.options.deadline_ms / 1000
        if self.classifies:
            return self.pipeline.classify([data], names=[name], top_k=options.top_k, deadline_s=deadline_s)[0]
        [image] = self.pipeline.predict(
            [data], names=[name], top_k=options.top_k, min_score=self.boxes.min_score, deadline_s=deadline_s
        )
        return image

    def _object(self, image: ImageAnswer) -> dict[str, Any]:
        report = self.pipeline.last_report.as_dict()
        if not isinstance(image, PredictedImage):
            return report
        return {"kind": self.kind, **report, "images": [image.as_dict(self.kind)]}

    def _print(self, image: ImageAnswer, delta: Difference | None) -> None:
        plan = self.pipeline.plan
        scores = "the network's own numbers" if plan.activation == ACTIVATIONS[-1] else plan.activation
        print_head(image.name, plan, f"; scores: {scores}" if self.kind == CLASSES else "")
        for line in _lines(image, self.kind):
            out.print(line, soft_wrap=True)
        print_report(self.pipeline, self.workers, delta)


def _print_demo(plan: Plan) -> None:
    if plan.tasks == 1:
        out.print(
            f"{plain(plan.model)} is whole, as serfer split advises: tiles are slower at this size "
            f"(docs/explanation/when-to-split.md). To see them: serfer split {plain(plan.model)} --grids "
            f"{','.join(ZOO[plan.model].grids)} --out tiles, then serfer classify tiles IMAGE --compare",
            soft_wrap=True,
        )


@dataclass(frozen=True)
class _Drawings:
    path: Path
    images: int
    limits: ImageLimits
    written: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.path.suffix.lower() not in PICTURES:
            made_folder(self.path, "pictures")
        elif self.images != 1:
            raise UsageError(f"--draw {self.path} is one file, and there are {self.images} images: give a folder")

    def write(self, data: bytes | Path, image: PredictedImage) -> Path:
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
        names = (stem, *(f"{stem}-{number}" for number in range(2, self.images + 1)))
        return next(place for name in names if (place := self.path / f"{name}{PICTURES[0]}") not in self.written)


def _check_boxes(plan: Plan, draw: Path | None, option: str) -> None:
    if option and plan.detection is None:
        raise UsageError(f"{option} is for boxes: describe the plan with --output boxes (docs/how-to/detect.md)")
    if draw and draw.suffix and draw.suffix.lower() not in PICTURES and not draw.is_dir():
        raise UsageError(f"--draw {draw} is not a picture's name: it should end in {', '.join(PICTURES)}")


def _lines(image: ImageAnswer, kind: str) -> Sequence[str]:
    if kind == CLASSES or not isinstance(image, PredictedImage):
        shares = all(0 <= prediction.score <= 1 for prediction in image.predictions)  # else the network's own numbers
        form = "8.2%" if shares else "8.4g"
        return [f"  {prediction.score:{form}}  {plain(prediction.label)}" for prediction in image.predictions]
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
