"""A small plan, written by hand: two tiles, then one."""

import hashlib

from serfer.core.geometry import Grid, Rect, Span
from serfer.core.plan import (
    FORMAT,
    Artefact,
    Operator,
    Padding,
    Piece,
    Plan,
    Preprocess,
    Range,
    Shape,
    Stage,
    Tile,
    dump_plan,
    sealed,
)

FILES = {
    "unsplit.onnx": b"whole",
    "stage-0/weights.bin": b"weights 0",
    "stage-0/a.onnx": b"graph a",
    "stage-1/weights.bin": b"",
    "stage-1/b.onnx": b"graph b",
}


def artefact(path):
    return Artefact(path, len(FILES[path]), hashlib.sha256(FILES[path]).hexdigest())


def small_plan():
    top, bottom = Rect(Span(0, 2), Span(0, 4)), Rect(Span(2, 4), Span(0, 4))
    none = Padding(0, 0, 0, 0)
    image, answer = Shape(3, 4, 4, flat=False), Shape(10, 1, 1, flat=True)
    first = tuple(Tile("stage-0/a.onnx", rect, rect, none, (rect,), (), 100) for rect in (top, bottom))
    pieces = tuple(Piece(source, (Range(0, (rect,)),)) for source, rect in enumerate((top, bottom)))
    last = Tile("stage-1/b.onnx", image.whole, answer.whole, none, (), pieces, 480)
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
            stages=(
                Stage(
                    (Operator("conv", "Conv", 190),),
                    Grid(2, 1),
                    1769,
                    41.5,
                    image,
                    image,
                    first,
                    artefact("stage-0/weights.bin"),
                    (artefact("stage-0/a.onnx"),),
                ),
                Stage(
                    (Operator("fc", "Gemm", 480),),
                    Grid(1, 1),
                    1769,
                    41.5,
                    image,
                    answer,
                    (last,),
                    artefact("stage-1/weights.bin"),
                    (artefact("stage-1/b.onnx"),),
                ),
            ),
            unsplit=artefact("unsplit.onnx"),
            digest="",
        )
    )


def write_plan(directory, plan=None):
    for path, value in FILES.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_bytes(value)
    (directory / "plan.json").write_text(dump_plan(plan or small_plan()), encoding="utf-8")
    return directory
