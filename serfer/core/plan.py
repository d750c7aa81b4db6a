"""A plan: the chain of stages that a network becomes, with every offset that a task will ever need.

    stage 0 (2x2)           stage 1 (col2)         stage 2 (1)
    ┌────┬────┐  pieces     ┌────┬────┐  pieces    ┌─────────┐
    │tile│tile│ ──────────▶ │    │    │ ─────────▶ │  tile   │ ──▶ logits
    ├────┼────┤             │tile│tile│            └─────────┘
    │tile│tile│             │    │    │
    └────┴────┘             └────┴────┘

A stage hands on one tensor, or a few where the network is cut across branches; a later stage may read what any stage
before it wrote. A tile writes its share of all of them once, as cells in a fixed order, each followed by its checksum
(serfer/core/checksum.py). A piece says which cells a tile reads from one tile before it, as ranges. Offsets are counted
in elements of one image; a batch of N images multiplies them by N, while a cell has one checksum whatever N is.

A vector of K values is a map of one row: 1 x K. So its columns are cut by the same rectangles as maps are.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serfer.core.checksum import CHECKSUM_BYTES
from serfer.core.errors import PlanError
from serfer.core.geometry import Grid, Rect
from serfer.core.structure import structure, unstructure

FORMAT = 5
FLOAT_BYTES = 4
IMAGE = -1
"""The stage that the image comes from, to those that read it."""
ACTIVATIONS = ("softmax", "sigmoid", "none")
PATHS = ("cache", "inline", "objects")
CACHE, INLINE, OBJECTS = PATHS
"""How a stage hands on: by way of the store, inside answers and payloads, or by way of a second store of objects."""
MAX_ELEMENTS = 2**28
"""The most values that one image's share of a tensor may have: 1 GiB of float32."""
PLAN_FILE = "plan.json"
ORIGINAL = ("original.onnx", "original.bin")
_MAX_PLAN_BYTES = 64 * 1024 * 1024
_HASH_BLOCK = 1 << 20
_UNTRAINED = "random"  # how the zoo says that weights are
_SHOWN = 40  # characters of what should have been a number


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file of the plan directory; `path` is relative to it."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Shape:
    """One image's share of a tensor: channels x height x width; a vector (`flat`) is 1 x 1 x its length."""

    channels: int
    height: int
    width: int
    flat: bool

    @classmethod
    def vector(cls, length: int) -> Shape:
        """Return the shape of a vector: a map of one row."""
        return cls(1, 1, length, flat=True)

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
            return (batch, rect.cols.size)
        return (batch, self.channels, rect.rows.size, rect.cols.size)

    def slices(self, rect: Rect) -> tuple[slice, ...]:
        """Return the numpy index of `rect` in a batch of whole tensors."""
        return (slice(None), rect.slices[1]) if self.flat else (slice(None), slice(None), *rect.slices)

    def __str__(self) -> str:
        """Write the shape as people do: 64x55x55, or 4096."""
        return str(self.width) if self.flat else f"{self.channels}x{self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the network; `macs` are multiply-accumulates of one image, unsplit."""

    name: str
    kind: str
    macs: int


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that a stage reads: output `output` of stage `stage`, or the image, where `stage` is IMAGE."""

    stage: int
    output: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectangle of one of the tensors that a tile writes: output `output` of its stage."""

    output: int
    rect: Rect


@dataclass(frozen=True, slots=True)
class Range:
    """A run of whole cells in another tile's object: `elements` values of one image's share, from element `offset`.

    `first` is the number of its first cell in the object.
    """

    offset: int
    elements: int
    first: int
    cells: tuple[Cell, ...]

    def start(self, batch: int) -> int:
        """Return at which byte of the object it starts, for `batch` images."""
        return stored_bytes(self.offset, self.first, batch)

    def length(self, batch: int) -> int:
        """Return how many bytes it has, for `batch` images."""
        return stored_bytes(self.elements, len(self.cells), batch)


@dataclass(frozen=True, slots=True)
class Piece:
    """What a tile reads from tile `tile` of stage `stage` before it."""

    stage: int
    tile: int
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

    It runs `graph` in function `function` of its stage. `inputs` and `padding` have one entry for each of the stage's
    inputs, `outputs` one for each of its outputs; `cells` cut the outputs in the order in which they are written (in
    the last stage, the one output whole); `macs` counts the halo's work too. `serial_ms` and `parallel_ms` are its
    predicted compute on one vCPU: what more vCPUs do not speed up, and what they do.
    """

    graph: str
    function: int
    inputs: tuple[Rect, ...]
    padding: tuple[Padding, ...]
    outputs: tuple[Rect, ...]
    cells: tuple[Cell, ...]
    pieces: tuple[Piece, ...]
    macs: int
    serial_ms: float = 0.0
    parallel_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Function:
    """One Lambda function of a stage: the weights that its tiles share, and their graphs.

    A stage has one, unless its weights are too large for a package: then each group of columns has its own.
    """

    weights: Artefact
    graphs: tuple[Artefact, ...]

    @property
    def bytes(self) -> int:
        """Bytes in the package, its code and dependencies apart."""
        return self.weights.bytes + sum(graph.bytes for graph in self.graphs)


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous part of the network.

    `predicted_ms` and `predicted_usd` are what the cost model gave it for one query in warm environments, invocations
    included, when the network was split (costs/cost_model.py). `path` says how its output travels: "inline" where its
    tiles answer with it and later tasks carry it, unless a payload becomes too large by that (serfer/core/inline.py);
    "cache", through the store, as what may not be inline does; "objects", through a second store where there is one
    (storage/routed.py). The last stage is always inline.
    """

    operators: tuple[Operator, ...]
    grid: Grid
    memory_mb: int
    predicted_ms: float
    predicted_usd: float
    inputs: tuple[Input, ...]
    outputs: tuple[Shape, ...]
    tiles: tuple[Tile, ...]
    functions: tuple[Function, ...]
    path: str

    @property
    def inline(self) -> bool:
        """Whether its tiles answer with what they wrote, where that fits."""
        return self.path == INLINE

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one image, unsplit."""
        return sum(operator.macs for operator in self.operators)

    @property
    def inflation(self) -> float:
        """Work over all tiles relative to the unsplit stage: what the halos cost."""
        return sum(tile.macs for tile in self.tiles) / self.macs if self.macs else 1.0

    def written(self, tile: Tile, batch: int = 1) -> int:
        """Return how many bytes one of its tiles writes for `batch` images."""
        elements = sum(self.outputs[cell.output].channels * cell.rect.area for cell in tile.cells)
        return stored_bytes(elements, len(tile.cells), batch)

    @property
    def files(self) -> list[Artefact]:
        """Every file of the stage's functions."""
        return [file for function in self.functions for file in (function.weights, *function.graphs)]


def stored_bytes(elements: int, cells: int, batch: int) -> int:
    """Return the bytes of `cells` cells with `elements` values of one image, for `batch` images: a checksum each."""
    return FLOAT_BYTES * batch * elements + CHECKSUM_BYTES * cells


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
class Change:
    """What a plan computes otherwise than the model as it was given, and what that cost, as measured.

    `samples` inputs, `measured_on` in words: `error` is the largest difference of the logits relative to their range
    (None for another head, whose logits are others), `agreement` the share with the same first class;
    `accuracy_before` and `accuracy_after` are shares of right answers on labelled images, None where there were none.
    """

    what: str
    how: str
    measured_on: str
    samples: int
    error: float | None
    agreement: float
    accuracy_before: float | None
    accuracy_after: float | None


@dataclass(frozen=True, slots=True)
class Way:
    """A way to deploy the network's largest indivisible part: `bytes` of weights in each of `functions` functions."""

    what: str
    functions: int
    bytes: int
    fits: bool
    exact: bool


@dataclass(frozen=True, slots=True)
class Alternative:
    """What a plan competed with: `stages` as text for people, predicted milliseconds and dollars of a warm query.

    `fits` says that its functions keep the package limit, `chosen` that it is this plan.
    """

    stages: str
    tasks: int
    ms: float
    usd: float
    fits: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class PackageLimit:
    """What a function's package may take unzipped, and how much of it is code and dependencies; bytes."""

    package: int
    dependencies: int

    @property
    def room(self) -> int:
        """Bytes that are left for weights and graphs."""
        return self.package - self.dependencies


@dataclass(frozen=True, slots=True)
class Plan:
    """A network as a chain of stages; see the module's text.

    `weights` says where the numbers come from, in words for people; `activation` turns logits into scores: "softmax",
    "sigmoid" or "none". `unsplit` is what the stages compute, in one piece; `changes` say where that differs from the
    model as it was given, which `original` (a graph and its weights) then holds. `ways` are empty unless some part was
    too large for one function in fp32. `memory_per_vcpu` is how many MB of a function's memory come with one vCPU
    (costs/vcpus.py). `store` is what the prediction is for: a kind of store, or two joined by "+"
    (costs/aws.py); `why` are the planner's reasons in a paragraph, `alternatives` what it had to choose from, the
    fastest first.
    """

    format: int
    model: str
    weights: str
    input: Shape
    output: Shape
    activation: str
    preprocess: Preprocess | None
    labels: tuple[str, ...]
    limit: PackageLimit
    memory_per_vcpu: float
    stages: tuple[Stage, ...]
    unsplit: Artefact
    original: tuple[Artefact, ...]
    changes: tuple[Change, ...]
    ways: tuple[Way, ...]
    store: str
    why: str
    alternatives: tuple[Alternative, ...]
    digest: str

    @property
    def artefacts(self) -> list[Artefact]:
        """Every file that belongs to the plan, plan.json apart."""
        return [self.unsplit, *self.original, *(file for stage in self.stages for file in stage.files)]

    @property
    def tasks(self) -> int:
        """Tasks of one query."""
        return sum(stage.grid.tiles for stage in self.stages)

    @property
    def untrained(self) -> bool:
        """Whether the weights are random numbers: answers mean nothing then."""
        return self.weights.startswith(_UNTRAINED)

    @property
    def functions(self) -> list[tuple[int, int]]:
        """Every function, as (stage, number)."""
        return [(index, number) for index, stage in enumerate(self.stages) for number in range(len(stage.functions))]

    def function(self, stage: int, number: int) -> str:
        """Return the name of a function of a stage; it carries the plan's digest so that plans never mix."""
        slug = "".join(char if char.isalnum() else "-" for char in self.model)[:24]
        return f"serfer-{slug}-{self.digest[:12]}-{stage}-{number}"

    def deployed(self, prefix: str, stage: int, number: int) -> str:
        """Return the name that a function of a stage has in AWS, in the stack of functions that begin with `prefix`."""
        return f"{prefix}-{self.digest[:12]}-{stage}-{number}"


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
    if not isinstance(value, dict) or "format" not in value:
        raise PlanError("plan.json is not a plan: it says no format; split the model again")
    if value["format"] != FORMAT:
        found = repr(value["format"])[:_SHOWN]
        raise PlanError(f"plan.json has format {found}, this version reads {FORMAT}; split the model again")
    plan = structure(Plan, value, "plan.json")
    if _digest(plan) != plan.digest:
        raise PlanError("plan.json was edited: its digest does not match; split the model again")
    _check_sound(plan)
    return plan


def _check_files(number: int, stage: Stage) -> None:
    """Refuse files but the ones that a stage has: they become part of a function, beside its code."""
    for index, function in enumerate(stage.functions):
        graphs = [graph.path for graph in function.graphs]
        names = function.weights.path == f"stage-{number}/weights-{index}.bin" and all(
            re.fullmatch(rf"stage-{number}/[A-Za-z0-9]{{1,64}}\.onnx", path) for path in graphs
        )
        if not names or any(tile.graph not in graphs for tile in stage.tiles if tile.function == index):
            raise PlanError(f"plan.json names files that are not of stage {number}, or lie outside the directory")
    macs = [*(operator.macs for operator in stage.operators), *(tile.macs for tile in stage.tiles)]
    compute = [ms for tile in stage.tiles for ms in (tile.serial_ms, tile.parallel_ms)]
    figures = [stage.predicted_ms, stage.predicted_usd, *compute, *macs]
    if not (all(0 <= value < math.inf for value in figures) and stage.memory_mb > 0):
        raise PlanError(f"plan.json's stage {number} has impossible figures")


def _check_sound(plan: Plan) -> None:
    """Refuse a plan that no splitter of ours writes, before anything is allocated or indexed by its numbers."""
    shapes = [plan.input, plan.output, *(shape for stage in plan.stages for shape in stage.outputs)]
    if not all(0 < size <= MAX_ELEMENTS for shape in shapes for size in (shape.channels, shape.height, shape.width)):
        raise PlanError("plan.json has a shape with a side of no or too many values")
    if max(shape.elements for shape in shapes) > MAX_ELEMENTS:
        raise PlanError(f"plan.json has a shape of more than {MAX_ELEMENTS:,} values")
    if not plan.stages or plan.stages[-1].outputs != (plan.output,):
        raise PlanError("plan.json's stages do not lead to its output")
    if plan.unsplit.path != "unsplit.onnx" or [file.path for file in plan.original] not in ([], list(ORIGINAL)):
        raise PlanError("plan.json's unsplit network has another name")
    if plan.activation not in ACTIVATIONS or len(plan.labels) not in (0, plan.output.elements):
        raise PlanError("plan.json's activation is unknown, or its labels are not one for each output")
    if not (0 <= plan.limit.dependencies <= plan.limit.package and 1 <= plan.memory_per_vcpu < math.inf):
        raise PlanError(
            "plan.json has a limit of packages that is less than its dependencies, or than nothing; or impossible MB "
            "that come with one vCPU"
        )
    for number, stage in enumerate(plan.stages):
        if stage.path not in PATHS:
            raise PlanError(f"plan.json's stage {number} hands on by a way that is unknown: {stage.path!r:.40}")
        _check_files(number, stage)
        _check_tiles(plan, number, stage)
    last = plan.stages[-1]
    if not last.inline or any(tile.cells != (Cell(0, tile.outputs[0]),) for tile in last.tiles):
        raise PlanError("plan.json's last stage does not answer with its output")


def _check_tiles(plan: Plan, number: int, stage: Stage) -> None:
    """Refuse a stage that does not follow from those before it, or whose tiles reach beyond their maps."""
    images = number == 0
    if any((source.stage == IMAGE) != images or not _exists(plan, number, source) for source in stage.inputs):
        raise PlanError(f"plan.json's stage {number} does not follow from the stages before")
    if not (stage.inputs and stage.functions and stage.grid.tiles == len(stage.tiles)):
        raise PlanError(f"plan.json's stage {number} lacks inputs, functions or tiles")
    for tile in stage.tiles:
        lengths = len(tile.inputs), len(tile.padding), len(tile.outputs), 0 <= tile.function < len(stage.functions)
        if lengths != (len(stage.inputs), len(stage.inputs), len(stage.outputs), True):
            raise PlanError(f"plan.json's stage {number} has a tile of another stage")
        rects = [*zip(stage.inputs, tile.inputs, strict=True)]
        inside = all(source.shape.whole.contains(rect) for source, rect in rects) and all(
            shape.whole.contains(rect) for shape, rect in zip(stage.outputs, tile.outputs, strict=True)
        )
        written = all(0 <= cell.output < len(stage.outputs) for cell in tile.cells)
        if not inside or not written or not all(_readable(plan, number, piece) for piece in tile.pieces):
            raise PlanError(f"plan.json's stage {number} has a tile outside its map, or a piece of no tile")


def _exists(plan: Plan, number: int, source: Input) -> bool:
    if source.stage == IMAGE:
        return source.shape == plan.input
    outputs = plan.stages[source.stage].outputs if 0 <= source.stage < number else ()
    return 0 <= source.output < len(outputs) and outputs[source.output] == source.shape


def _readable(plan: Plan, number: int, piece: Piece) -> bool:
    if not (0 <= piece.stage < number and 0 <= piece.tile < len(plan.stages[piece.stage].tiles)):
        return False
    known = {(source.stage, source.output) for source in plan.stages[number].inputs}
    return all((piece.stage, cell.output) in known for part in piece.ranges for cell in part.cells)


def load_plan(directory: Path) -> Plan:
    """Read plan.json of a plan directory, without looking at its artefacts."""
    path = directory / PLAN_FILE
    try:
        if path.exists() and not path.is_file():
            raise PlanError(f"{path} is not a regular file: not a plan")
        with path.open("rb") as file:
            data = file.read(_MAX_PLAN_BYTES + 1)
        if len(data) > _MAX_PLAN_BYTES:
            raise PlanError(f"{path} is larger than {_MAX_PLAN_BYTES} bytes: not a plan")
        text = data.decode("utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PlanError(
            f"{directory} is not a plan directory: it has no {PLAN_FILE}; make one with serfer split"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    return parse_plan(text)


def check_artefacts(plan: Plan, directory: Path) -> None:
    """Hash every artefact of a plan directory; raises PlanError that names the first wrong file."""
    _check_sound(plan)
    for artefact in plan.artefacts:
        path = directory / artefact.path
        if _is_linked(directory, Path(artefact.path)):  # ONNX Runtime follows no link out of a model's directory
            raise PlanError(f"{path} lies behind a link: copy the file itself into the plan, or split the model again")
        if not path.is_file():
            raise PlanError(f"{path} is missing, or no file; split the model again")
        if path.stat().st_size != artefact.bytes or file_sha256(path) != artefact.sha256:
            raise PlanError(f"{path} was altered: its digest does not match plan.json; split the model again")


def _is_linked(directory: Path, path: Path) -> bool:
    """Say whether a path in a directory, which may be a link itself, leads over a link."""
    return any((directory / part).is_symlink() for part in (path, *path.parents[:-1]))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex, reading it block by block."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256", _bufsize=_HASH_BLOCK).hexdigest()
