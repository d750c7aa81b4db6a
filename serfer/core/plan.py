"""A plan: the chain of stages that a network becomes, with every offset that a task will ever need.

    stage 0 (2x2)           stage 1 (2x2)          stage 2 (1)
    ┌────┬────┐  pieces     ┌────┬────┐  pieces    ┌─────────┐
    │tile│tile│ ──────────▶ │tile│tile│ ─────────▶ │  tile   │ ──▶ logits
    ├────┼────┤             ├────┼────┤            └─────────┘
    │tile│tile│             │tile│tile│
    └────┴────┘             └────┴────┘

A tile writes its output once, as cells in a fixed order. A piece says which cells a tile reads from one tile before
it, as ranges. Offsets are counted in elements of one image; a batch of N images multiplies them by N.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serfer.core.errors import PlanError
from serfer.core.geometry import Grid, Rect
from serfer.core.structure import structure, unstructure

FORMAT = 1
ACTIVATIONS = ("softmax", "sigmoid", "none")
MAX_ELEMENTS = 2**28
"""The most values that one image's share of a tensor may have: 1 GiB of float32."""
PLAN_FILE = "plan.json"
_MAX_PLAN_BYTES = 64 * 1024 * 1024
_HASH_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file of the plan directory; `path` is relative to it."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Shape:
    """One image's share of a tensor: (channels, height, width), or (channels,) where `flat`."""

    channels: int
    height: int
    width: int
    flat: bool

    @property
    def elements(self) -> int:
        """Number of values for one image."""
        return self.channels * self.height * self.width

    @property
    def whole(self) -> Rect:
        """The rectangle of the whole map."""
        return Rect.whole(self.height, self.width)

    def of(self, rect: Rect, batch: int) -> tuple[int, ...]:
        """Return the array shape of `rect` for `batch` images."""
        if self.flat:
            return (batch, self.channels)
        return (batch, self.channels, rect.rows.size, rect.cols.size)

    def __str__(self) -> str:
        """Write the shape as people do: 64x55x55, or 4096."""
        return str(self.channels) if self.flat else f"{self.channels}x{self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the network; `macs` are multiply-accumulates of one image, unsplit."""

    name: str
    kind: str
    macs: int


@dataclass(frozen=True, slots=True)
class Range:
    """A run of whole cells in another tile's output, starting at element `offset` of one image's share."""

    offset: int
    cells: tuple[Rect, ...]

    @property
    def area(self) -> int:
        """Positions in the run; times the channels gives elements."""
        return sum(cell.area for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Piece:
    """What a tile reads from tile `source` of the stage before."""

    source: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Padding:
    """Rows and columns by which a tile's receptive field leaves the map; only there is anything padded."""

    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True, slots=True)
class Tile:
    """One task's share of a stage.

    `input` is a rectangle of the stage's input, `output` of its output; `cells` cut `output` in the order in which they
    are written (empty for the last stage, whose output goes back with the answer); `macs` counts the halo's work too.
    """

    graph: str
    input: Rect
    output: Rect
    padding: Padding
    cells: tuple[Rect, ...]
    pieces: tuple[Piece, ...]
    macs: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous part of the network: one function.

    `predicted_ms` is what the cost model gave its slowest tile, warm, when the network was split.
    """

    operators: tuple[Operator, ...]
    grid: Grid
    memory_mb: int
    predicted_ms: float
    input: Shape
    output: Shape
    tiles: tuple[Tile, ...]
    weights: Artefact
    graphs: tuple[Artefact, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one image, unsplit."""
        return sum(operator.macs for operator in self.operators)

    @property
    def inflation(self) -> float:
        """Work over all tiles relative to the unsplit stage: what the halos cost."""
        return sum(tile.macs for tile in self.tiles) / self.macs if self.macs else 1.0


INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
CHANNELS = ("RGB", "BGR", "L")
_MAX_RESIZE = 65_536
_LEAST, _MOST = 1e-9, 1e9  # float32 adds, multiplies and divides these without an overflow


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How an image becomes the input: resize its shorter side, crop the centre, then (x * scale - mean) / std.

    `mean` and `std` are per channel, in the order of `channels` ("RGB", "BGR", or "L" for grey), after scaling.
    `resize` is in pixels; None stretches the whole image to the input's size instead. Raises PlanError for values that
    no description has.
    """

    resize: int | None
    interpolation: str
    channels: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.resize is not None and not 1 <= self.resize <= _MAX_RESIZE:
            raise PlanError(f"resize of the preprocessing should be 1 to {_MAX_RESIZE} pixels")
        for name, value, known in (
            ("interpolation", self.interpolation, INTERPOLATIONS),
            ("channels", self.channels, CHANNELS),
        ):
            if value not in known:
                raise PlanError(f"{name} of the preprocessing should be one of {', '.join(known)}, not {value!r:.40}")
        self._check_numbers("mean", self.mean, -_MOST)
        self._check_numbers("std", self.std, _LEAST)
        if not _LEAST <= abs(self.scale) <= _MOST:
            raise PlanError(f"scale of the preprocessing should be a number other than 0, not {self.scale:g}")

    def _check_numbers(self, name: str, values: tuple[float, ...], least: float) -> None:
        if len(values) != len(self.channels):
            raise PlanError(
                f"{name} of the preprocessing has {len(values)} numbers, {self.channels} needs {len(self.channels)}"
            )
        for index, value in enumerate(values):
            if not least <= value <= _MOST:
                raise PlanError(f"{name}[{index}] of the preprocessing should be {least:g} to {_MOST:g}, not {value:g}")


@dataclass(frozen=True, slots=True)
class Plan:
    """A network as a chain of stages; see the module's text.

    `weights` says where the numbers come from, in words for people; `activation` turns logits into scores: "softmax",
    "sigmoid" or "none".
    """

    format: int
    model: str
    weights: str
    input: Shape
    output: Shape
    activation: str
    preprocess: Preprocess | None
    labels: tuple[str, ...]
    stages: tuple[Stage, ...]
    unsplit: Artefact
    digest: str

    @property
    def artefacts(self) -> list[Artefact]:
        """Every file that belongs to the plan, plan.json apart."""
        return [self.unsplit, *(file for stage in self.stages for file in (stage.weights, *stage.graphs))]

    @property
    def tasks(self) -> int:
        """Tasks of one query."""
        return sum(stage.grid.tiles for stage in self.stages)

    def function(self, stage: int) -> str:
        """Return the name of a stage's function; it carries the plan's digest so that plans never mix."""
        slug = "".join(char if char.isalnum() else "-" for char in self.model)[:24]
        return f"serfer-{slug}-{self.digest[:12]}-{stage}"


def _digest(plan: Plan) -> str:
    canonical = unstructure(replace(plan, digest=""))
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(plan: Plan) -> Plan:
    """Return the plan with its digest: SHA-256 of its canonical JSON, artefact digests included."""
    return replace(plan, digest=_digest(plan))


def dump_plan(plan: Plan) -> str:
    """Write a plan as the text of plan.json."""
    return json.dumps(unstructure(plan), indent=1, ensure_ascii=False) + "\n"


def parse_plan(text: str) -> Plan:
    """Read the text of plan.json; raises PlanError where it is not a plan, or not the plan that was written."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise PlanError(f"plan.json is not JSON ({error}); split the model again") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise PlanError(f"plan.json has format {found!r}, this version reads {FORMAT}; split the model again")
    plan = structure(Plan, value, "plan.json")
    if _digest(plan) != plan.digest:
        raise PlanError("plan.json was edited: its digest does not match; split the model again")
    _check_sound(plan)
    return plan


def _check_files(number: int, stage: Stage) -> None:
    """Refuse files but the ones that a stage has: they become part of a function, beside its code."""
    graphs = [graph.path for graph in stage.graphs]
    names = stage.weights.path == f"stage-{number}/weights.bin" and all(
        re.fullmatch(rf"stage-{number}/[A-Za-z0-9]{{1,64}}\.onnx", path) for path in graphs
    )
    if not names or any(tile.graph not in graphs for tile in stage.tiles):
        raise PlanError(f"plan.json names files that are not of stage {number}, or lie outside the directory")
    if not (0 <= stage.predicted_ms < math.inf and stage.memory_mb > 0):
        raise PlanError(f"plan.json's stage {number} has impossible figures")


def _check_sound(plan: Plan) -> None:
    """Refuse a plan that no splitter of ours writes, before anything is allocated or indexed by its numbers."""
    shapes = [plan.input, plan.output, *(shape for stage in plan.stages for shape in (stage.input, stage.output))]
    if not all(0 < size <= MAX_ELEMENTS for shape in shapes for size in (shape.channels, shape.height, shape.width)):
        raise PlanError("plan.json has a shape with a side of no or too many values")
    if max(shape.elements for shape in shapes) > MAX_ELEMENTS:
        raise PlanError(f"plan.json has a shape of more than {MAX_ELEMENTS:,} values")
    if not plan.stages or plan.stages[0].input != plan.input or plan.stages[-1].output != plan.output:
        raise PlanError("plan.json's stages do not lead from its input to its output")
    if plan.unsplit.path != "unsplit.onnx" or not plan.stages[-1].grid.tiles == 1 == len(plan.stages[-1].tiles):
        raise PlanError("plan.json's last stage has several tiles, or its unsplit network another name")
    if plan.activation not in ACTIVATIONS or len(plan.labels) not in (0, plan.output.channels):
        raise PlanError("plan.json's activation is unknown, or its labels are not one for each output")
    before: Stage | None = None
    for number, stage in enumerate(plan.stages):
        _check_files(number, stage)
        if stage.grid.tiles != len(stage.tiles) or (before and before.output != stage.input):
            raise PlanError(f"plan.json's stage {number} does not follow from the stage before, or lacks tiles")
        sources = len(before.tiles) if before else 0
        for tile in stage.tiles:
            inside = stage.input.whole.contains(tile.input) and stage.output.whole.contains(tile.output)
            if not inside or any(not 0 <= piece.source < sources for piece in tile.pieces):
                raise PlanError(f"plan.json's stage {number} has a tile outside its map, or a piece of no tile")
        before = stage


def load_plan(directory: Path) -> Plan:
    """Read plan.json of a plan directory, without looking at its artefacts."""
    path = directory / PLAN_FILE
    try:
        if path.exists() and not path.is_file():
            raise PlanError(f"{path} is no regular file: not a plan")
        with path.open("rb") as file:
            data = file.read(_MAX_PLAN_BYTES + 1)
        if len(data) > _MAX_PLAN_BYTES:
            raise PlanError(f"{path} is larger than {_MAX_PLAN_BYTES} bytes: not a plan")
        text = data.decode("utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PlanError(
            f"{directory} is no plan directory: it has no {PLAN_FILE}; make one with serfer split"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    return parse_plan(text)


def check_artefacts(plan: Plan, directory: Path) -> None:
    """Hash every artefact of a plan directory; raises PlanError that names the first wrong file."""
    _check_sound(plan)
    for artefact in plan.artefacts:
        path = directory / artefact.path
        if not path.is_file():
            raise PlanError(f"{path} is missing; split the model again")
        if path.stat().st_size != artefact.bytes or file_sha256(path) != artefact.sha256:
            raise PlanError(f"{path} was altered: its digest does not match plan.json; split the model again")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex, reading it block by block."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256", _bufsize=_HASH_BLOCK).hexdigest()
