"""A small plan, written by hand: two tiles, then one."""

import hashlib

from serfer import plan_directory
from serfer.core.geometry import Grid, Rect, Span
from serfer.core.plan import (
    CACHE,
    FORMAT,
    IMAGE,
    INLINE,
    Alternative,
    Artefact,
    Cell,
    Function,
    Input,
    Operator,
    PackageLimit,
    Padding,
    Piece,
    Plan,
    Preprocess,
    Range,
    Shape,
    Stage,
    Tile,
    dump_plan,
    parse_plan,
    sealed,
)
from serfer.core.plan.explanation import dump_explanation, with_explanation

FILES = {
    "unsplit.onnx": b"whole",
    "stage-0/weights-0.bin": b"weights 0",
    "stage-0/a.onnx": b"graph a",
    "stage-1/weights-0.bin": b"",
    "stage-1/b.onnx": b"graph b",
}


def artefact(path):
    return Artefact(path, len(FILES[path]), hashlib.sha256(FILES[path]).hexdigest())


def small_plan():
    top, bottom = Rect(Span(0, 2), Span(0, 4)), Rect(Span(2, 4), Span(0, 4))
    none = Padding(0, 0, 0, 0)
    image, answer = Shape(3, 4, 4, flat=False), Shape.vector(10)
    first = tuple(
        Tile("stage-0/a.onnx", 0, (rect,), (none,), (rect,), (Cell(0, rect),), (), 100, 0.0, 0.0)
        for rect in (top, bottom)
    )
    pieces = tuple(Piece(0, tile, (Range(0, 24, 0, (Cell(0, rect),)),)) for tile, rect in enumerate((top, bottom)))
    whole = (Cell(0, answer.whole),)
    last = Tile("stage-1/b.onnx", 0, (image.whole,), (none,), (answer.whole,), whole, pieces, 480, 0.0, 0.0)
    return sealed(
        Plan(
            format=FORMAT,
            model="small net",
            weights="none",
            input=image,
            output=answer,
            activation="softmax",
            preprocess=Preprocess(256, "bicubic", "RGB", 1 / 255, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)),
            labels=("tabby", "größer", "犬", *map(str, range(3, 10))),
            limit=PackageLimit(262_144_000, 90_000_000),
            memory_per_vcpu=1769.0,
            stages=(
                Stage(
                    (Operator("conv", "Conv", 190),),
                    Grid(2, 1),
                    1769,
                    (Input(IMAGE, IMAGE, image),),
                    (image,),
                    first,
                    (Function(artefact("stage-0/weights-0.bin"), (artefact("stage-0/a.onnx"),)),),
                    path=CACHE,
                    predicted_ms=41.5,
                    predicted_usd=2e-6,
                ),
                Stage(
                    (Operator("fc", "Gemm", 480),),
                    Grid(1, 1),
                    1769,
                    (Input(0, 0, image),),
                    (answer,),
                    (last,),
                    (Function(artefact("stage-1/weights-0.bin"), (artefact("stage-1/b.onnx"),)),),
                    path=INLINE,
                    predicted_ms=41.5,
                    predicted_usd=2e-6,
                ),
            ),
            unsplit=artefact("unsplit.onnx"),
            original=(),
            changes=(),
            ways=(),
            store="redis",
            why="It was the only one.",
            alternatives=(Alternative("2x1 at 1769 MB, then 1 at 1769 MB", 3, 83.0, 4e-6, fits=True, chosen=True),),
            digest="",
        )
    )


def read_back(plan):
    return with_explanation(parse_plan(dump_plan(plan)), dump_explanation(plan))


def write_plan(directory, plan=None):
    for path, value in FILES.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_bytes(value)
    plan_directory.write_plan(plan or small_plan(), directory)
    return directory
