"""The records of a plan, and what follows from each by itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from serfer.core.checksum import CHECKSUM_BYTES
from serfer.core.dataclass_codec import LATER
from serfer.core.errors import PlanError
from serfer.core.geometry import Grid, Rect
from serfer.core.plan.detection import DetectionHead
from serfer.core.plan.preprocess import Preprocess
from serfer.core.plan.sizes import PlanSizes
from serfer.core.plan.windows import Windows
from serfer.core.units import FLOAT_BYTES

IMAGE = -1
"""The stage that the image comes from, to those that read it."""
ACTIVATIONS = ("softmax", "sigmoid", "none")
PATHS = ("cache", "inline", "objects")
CACHE, INLINE, OBJECTS = PATHS
"""Paths of a stage's output: through the store, inside answers and payloads, or through a second store of objects."""
WEIGHT_PLACES = ("zip", "fetched", "image")
ZIP, FETCHED, CONTAINER = WEIGHT_PLACES
"""Where a function has its weights: in its zip package, in the deployment's bucket, or in its container image."""
AS_IS = "AsIs"
"""The kind of an operator of a plan that stands for all operators that run as they were given."""
PREDICTED, PARTLY_TIMED, TIMED = ("predicted", "predicted, in part timed here", "timed here")
"""Where a plan's times are from: operator profiles, or runs on the machine where it was made."""
OUTPUT_TYPES = ("float32", "int64", "int32", "uint8", "bool")
"""The numpy types of a network's outputs; between stages, all are float32, which holds them exactly up to 2^24."""
INPUT_TYPES = ("float32", "float16", "float64", "uint8", "int8", "uint16", "int16", "int32", "int64", "bool")
INPUT_AXES = ("NCHW", "NHWC", "NHW", "CHW", "HWC")
"""The numpy types and the axes that the input of a file may have: images, channels, height, width."""
MAX_ELEMENTS = 2**28
"""The most values that one image's share of a tensor may have: 1 GiB of float32."""
SCORES = "logits"
"""What the one output of a network that classifies is called where it has no name of its own."""
_UNTRAINED = "random"  # how the zoo says that weights are
T = TypeVar("T")


def explained(value: T | None) -> T:
    """Return what explanation.json says; raises PlanError where the plan was read without one."""
    if value is None:
        raise PlanError(
            "the plan's explanation.json is missing, which has what is predicted of it: copy it beside plan.json, or "
            "split the network again"
        )
    return value


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file of the plan directory; `path` is relative to it."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class MapBoxes:
    """How the outputs of a map plan, maps of a detector's heads, become boxes.

    `decoder` is an ONNX graph of the detector's last operators: of the maps of a frame of height x width pixels, by the
    names of the plan's outputs, it makes the outputs of `head`. Images are padded at their right and lower ends to
    multiples of `multiple` pixels.
    """

    head: DetectionHead
    decoder: Artefact
    height: int
    width: int
    multiple: int


@dataclass(frozen=True)
class Shape:
    """One image's share of a tensor: channels x height x width; a vector (`flat`) is 1 x 1 x its length."""

    channels: int
    height: int
    width: int
    flat: bool

    @classmethod
    def vector(cls, length: int) -> Shape:
        return cls(1, 1, length, flat=True)

    @cached_property
    def elements(self) -> int:
        return self.channels * self.height * self.width

    @cached_property
    def whole(self) -> Rect:
        return Rect.whole(self.height, self.width)

    def of(self, rect: Rect, batch: int) -> tuple[int, ...]:
        rows, cols = rect.rows, rect.cols
        if self.flat:
            return (batch, cols.stop - cols.start)
        return (batch, self.channels, rows.stop - rows.start, cols.stop - cols.start)

    def slices(self, rect: Rect) -> tuple[slice, ...]:
        """Return the numpy index of `rect` in a batch of whole tensors."""
        return (slice(None), rect.slices[1]) if self.flat else (slice(None), slice(None), *rect.slices)

    def __str__(self) -> str:
        """Write the shape as people do: 64x55x55, or 4096."""
        return str(self.width) if self.flat else f"{self.channels}x{self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One of a network's outputs: `dims` is one image's shape as the network gives it, `dtype` one of OUTPUT_TYPES.

    Where its size along `axis` of `dims` depends on the image, that is the most of it, and `sized_by` names the output
    that has each image's own; else it is empty.
    """

    name: str
    dims: tuple[int, ...]
    dtype: str
    sized_by: str = ""
    axis: int = 0


@dataclass(frozen=True, slots=True)
class FileTensors:
    """The input and the output of the ONNX file that a network was read from, as the file has them.

    `dtype` is the input's numpy type, one of INPUT_TYPES, `axes` one of INPUT_AXES, where "HWC" and "CHW" are files of
    one image. `output` is what the file calls its only output, empty where it has several: a plan has their own names.
    """

    input: str
    dtype: str
    axes: str
    output: str = ""


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
        return stored_bytes(self.elements, len(self.cells), batch)


@dataclass(frozen=True, slots=True)
class Piece:
    """The region that a tile reads from tile `tile` of stage `stage` before it."""

    stage: int
    tile: int
    ranges: tuple[Range, ...]

    @property
    def cell_numbers(self) -> list[int]:
        return [number for part in self.ranges for number in range(part.first, part.first + len(part.cells))]


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
    the last stage, each output whole); `macs` counts the halo's work too. `serial_ms` and `parallel_ms` are its
    predicted compute on one vCPU: what more vCPUs do not speed up, and what they do; None without explanation.json.
    """

    graph: str
    function: int
    inputs: tuple[Rect, ...]
    padding: tuple[Padding, ...]
    outputs: tuple[Rect, ...]
    cells: tuple[Cell, ...]
    pieces: tuple[Piece, ...]
    macs: int
    serial_ms: float | None = None
    parallel_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """One Lambda function of a stage: the weights that its tiles share, and their graphs.

    A stage has one, unless its weights are too large for a package: then each group of columns has its own.
    """

    weights: Artefact
    graphs: tuple[Artefact, ...]

    @property
    def files(self) -> tuple[Artefact, ...]:
        return (self.weights, *self.graphs)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous part of the network.

    `predicted_ms` and `predicted_usd` are what the cost model gave it for one query in warm environments, invocations
    included, when the network was split (costs/cost_model.py); None without explanation.json. `path` says how its
    output travels: "inline" where its tiles answer with it and later tasks carry it, unless a payload becomes too large
    by that (core/inline_outputs.py); "cache", through the store, as what may not be inline does; "objects", through a
    second store where there is one (storage/routed.py). The last stage is always inline. `weights_in` says where its
    functions have their weights: "zip", in their package; "fetched", by digest in a bucket, from which an environment
    reads them once; "image", in a container image. The stages of a gang have theirs in one place.
    """

    operators: tuple[Operator, ...]
    grid: Grid
    memory_mb: int
    inputs: tuple[Input, ...]
    outputs: tuple[Shape, ...]
    tiles: tuple[Tile, ...]
    functions: tuple[Function, ...]
    path: str
    weights_in: str = ZIP
    predicted_ms: float | None = field(default=None, kw_only=True)
    predicted_usd: float | None = field(default=None, kw_only=True)

    @property
    def inline(self) -> bool:
        """Whether its tiles answer with what they wrote, where that fits."""
        return self.path == INLINE

    @property
    def macs(self) -> int:
        return sum(operator.macs for operator in self.operators)

    @property
    def inflation(self) -> float:
        """Work over all tiles relative to the unsplit stage: what the halos cost."""
        return sum(tile.macs for tile in self.tiles) / self.macs if self.macs else 1.0

    def written(self, tile: Tile, batch: int = 1) -> int:
        """Return how many bytes one of its tiles writes for `batch` images."""
        elements = sum([self.outputs[cell.output].channels * cell.rect.area for cell in tile.cells])
        return stored_bytes(elements, len(tile.cells), batch)

    @property
    def fetches(self) -> bool:
        return self.weights_in == FETCHED

    @property
    def files(self) -> list[Artefact]:
        return [file for function in self.functions for file in function.files]


@dataclass(frozen=True, slots=True)
class Gang:
    """Stages [start, stop) that one function runs without returning: its tiles stay, and exchange halos meanwhile.

    Each tile number is a member: one invocation, which computes that tile of every stage that has it. `predicted_ms`
    and `predicted_usd` are for the whole gang, None without explanation.json; its stages' own predictions are for
    running them one by one, which any driver may do instead. A member may compute for `compute_s` seconds
    (gang_times.py).
    """

    start: int
    stop: int
    predicted_ms: float | None = None
    predicted_usd: float | None = None
    compute_s: int = 1

    @property
    def stages(self) -> range:
        return range(self.start, self.stop)

    @property
    def name(self) -> str:
        return f"stage-{self.start}..{self.stop - 1}"


def stored_bytes(elements: int, cells: int, batch: int) -> int:
    """Return the bytes of `cells` cells with `elements` values of one image, for `batch` images: a checksum each."""
    return FLOAT_BYTES * batch * elements + CHECKSUM_BYTES * cells


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A difference between what a plan computes and the given model, and its measured cost.

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
class DeploymentOption:
    """One possible deployment of the network's largest indivisible part: `bytes` of weights in each of `functions`."""

    what: str
    functions: int
    bytes: int
    fits: bool
    exact: bool


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative of a plan: `stages` as text for people, expected milliseconds and dollars of a query.

    Expected with the share of cold queries that the plan was chosen for; `warm_ms` and `warm_usd` are of a query that
    finds everything warm, `cold_ms` of one that finds nothing, None where a plan does not say. `fits` says that its
    functions keep the package limit, `chosen` that it is this plan.
    """

    stages: str
    tasks: int
    ms: float
    usd: float
    fits: bool
    chosen: bool
    warm_ms: float | None = None
    cold_ms: float | None = None
    warm_usd: float | None = None


@dataclass(frozen=True, slots=True)
class PackageLimit:
    """The limit of a function's unzipped package, and how much of it is code and dependencies; bytes."""

    package: int
    dependencies: int

    @property
    def room(self) -> int:
        return self.package - self.dependencies


@dataclass(frozen=True, slots=True)
class PlanDescription:
    """What a network's file does not say of it: how an image becomes its input, and what its outputs mean."""

    preprocess: Preprocess | None
    labels: tuple[str, ...]
    activation: str
    detection: DetectionHead | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class Plan:
    """A network as a chain of stages; see the module's text.

    `weights` says where the numbers come from, in words for people; `activation` turns logits into scores: "softmax",
    "sigmoid" or "none". `unsplit` is what the stages compute, in one piece; `changes` say where that differs from the
    given model, which `original` (a graph and its weights) then holds. `ways` are empty unless some part was too large
    for one function in fp32. `memory_per_vcpu` is how many MB of a function's memory come with one vCPU
    (costs/vcpus.py). `store` is what the prediction is for: a kind of store, or two joined by "+" (costs/aws.py); `why`
    are the planner's reasons in a paragraph, `alternatives` what it had to choose from, the fastest first, `cold_share`
    the share of queries that it was chosen for which find nothing warm, None where it does not say. `times` says where
    its times are from: PREDICTED, PARTLY_TIMED or TIMED. `gangs` are disjoint and in order. `outputs` describe what the
    last stage writes, in its order; they are empty for a network that classifies, whose one output is (N, K) float32;
    `output` is the first one's shape. `quantised` is the whole network in 8 bits, for instances, where `serfer app
    register` has made it: another answer. `file` is what an ONNX file calls its input and output, and how it has its
    input.
    `windows` make it a map plan: its one stage has a tile for each kind of window, a query is one window, and `input`
    and `outputs` have the largest window's size. `detection` says which outputs hold boxes; they are found in the
    answer, where it is assembled. With `sizes` queries have sizes of their own, of which `input` is the largest; what a
    query computes is then the plan at its size (sized_plan.py).

    With `boxes` a map plan's outputs are the maps of a detector's heads, of which it makes boxes.

    `as_split` is the description that the plan was split with, where it has another one since (`redescribed`): workers
    know that one alone, so drivers send theirs with pixels.

    `digest` names functions and keys: it covers what workers execute, and the description as it was split. `limit`,
    `changes`, `ways`, `store`, `why`, `alternatives`, `cold_share`, `times` and all predictions are from
    explanation.json, and None or empty where that is missing.
    """

    format: int
    model: str
    weights: str
    input: Shape
    output: Shape
    activation: str
    preprocess: Preprocess | None
    labels: tuple[str, ...]
    memory_per_vcpu: float
    stages: tuple[Stage, ...]
    unsplit: Artefact
    original: tuple[Artefact, ...]
    digest: str
    gangs: tuple[Gang, ...] = ()
    outputs: tuple[OutputTensor, ...] = ()
    windows: Windows | None = None
    quantised: tuple[Artefact, ...] = ()
    detection: DetectionHead | None = field(default=None, metadata=LATER)
    file: FileTensors | None = field(default=None, metadata=LATER)
    sizes: PlanSizes | None = field(default=None, metadata=LATER)
    as_split: PlanDescription | None = field(default=None, metadata=LATER)
    boxes: MapBoxes | None = field(default=None, metadata=LATER)
    limit: PackageLimit | None = None
    changes: tuple[ModelChange, ...] = ()
    ways: tuple[DeploymentOption, ...] = ()
    store: str = ""
    why: str = ""
    alternatives: tuple[Alternative, ...] = ()
    cold_share: float | None = None
    times: str = PREDICTED

    @property
    def explained(self) -> bool:
        return self.limit is not None

    def check_explained(self) -> None:
        """Raise PlanError where the plan was read without its explanation.json."""
        explained(self.limit)

    @property
    def description(self) -> PlanDescription:
        return PlanDescription(self.preprocess, self.labels, self.activation, self.detection)

    @cached_property
    def workers_preprocess(self) -> Preprocess | None:
        """The preprocessing that workers apply to pixels that come without levels: that of the split."""
        return self.as_split.preprocess if self.as_split else self.preprocess

    def redescribed(self, description: PlanDescription) -> Plan:
        """Return the plan of the same digest, graphs and weights with another description."""
        before = self.as_split or self.description
        return replace(
            self,
            preprocess=description.preprocess,
            labels=description.labels,
            activation=description.activation,
            detection=description.detection,
            as_split=None if description == before else before,
        )

    @cached_property
    def classifies(self) -> bool:
        """Whether the one output is a score for each class, (N, K) float32."""
        return not self.outputs

    @cached_property
    def output_tensors(self) -> tuple[OutputTensor, ...]:
        only = (self.file.output if self.file else "") or SCORES
        return self.outputs or (OutputTensor(only, (self.output.width,), OUTPUT_TYPES[0]),)

    @property
    def artefacts(self) -> list[Artefact]:
        """Every file that belongs to the plan, plan.json and explanation.json apart."""
        files = [self.unsplit, *self.original, *self.quantised]
        files += [self.boxes.decoder] if self.boxes else []
        return [*files, *(file for stage in self.stages for file in stage.files)]

    @property
    def tasks(self) -> int:
        return sum(stage.grid.tiles for stage in self.stages)

    @property
    def predicted_ms(self) -> list[float]:
        """Predicted milliseconds of each step of a warm query: a gang, or a stage outside of any; [] if unexplained."""
        return [explained(step.predicted_ms) for step in self._steps] if self.explained else []

    @property
    def predicted_usd(self) -> float | None:
        """Predicted dollars of a warm query, gangs as such; None if unexplained."""
        return sum(explained(step.predicted_usd) for step in self._steps) if self.explained else None

    @property
    def _steps(self) -> list[Stage | Gang]:
        gangs = {gang.start: gang for gang in self.gangs}
        return [gangs.get(stage, self.stages[stage]) for stage in sorted({stage for stage, _ in self.functions})]

    @cached_property
    def untrained(self) -> bool:
        """Whether the weights are random numbers: answers mean nothing then."""
        return self.weights.startswith(_UNTRAINED)

    def gang_of(self, stage: int) -> Gang | None:
        return next((gang for gang in self.gangs if stage in gang.stages), None)

    @property
    def widest_gang(self) -> int:
        """The most members that a gang has, 0 where there is none."""
        return max((self.stages[gang.start].grid.tiles for gang in self.gangs), default=0)

    @property
    def functions(self) -> list[tuple[int, int]]:
        """Every function, as (stage, number); a gang's is that of its first stage."""
        later = {stage for gang in self.gangs for stage in gang.stages[1:]}
        return [
            (index, number)
            for index, stage in enumerate(self.stages)
            if index not in later
            for number in range(len(stage.functions))
        ]

    def parts(self, stage: int, number: int) -> list[Function]:
        """Return what a function of `functions` holds: its weights and graphs for each of its stages."""
        gang = self.gang_of(stage)
        return [self.stages[index].functions[number] for index in (gang.stages if gang else (stage,))]

    def packaged(self, stage: int, number: int) -> list[Artefact]:
        """Return the files in the package of a function of `functions`: all of it, or all but fetched weights."""
        fetches = self.stages[stage].fetches
        return [file for part in self.parts(stage, number) for file in (part.graphs if fetches else part.files)]

    def fetched(self, stage: int, number: int) -> list[Artefact]:
        """Return the weights that a function of `functions` fetches; none where they are in its package."""
        return [part.weights for part in self.parts(stage, number)] if self.stages[stage].fetches else []

    def function_bytes(self, stage: int, number: int) -> int:
        """Return the bytes in the package of a function of `functions`, its code and dependencies apart."""
        return sum(file.bytes for file in self.packaged(stage, number))

    def home(self, stage: int, number: int) -> tuple[int, int]:
        """Return the function, as in `functions`, that runs the tiles of a stage's function `number`."""
        gang = self.gang_of(stage)
        return (gang.start if gang else stage), number

    def function(self, stage: int, number: int) -> str:
        """Return the name of a function of a stage; it carries the plan's digest so that plans never mix."""
        stage, number = self.home(stage, number)
        slug = "".join(char if char.isalnum() else "-" for char in self.model)[:24]
        return f"serfer-{slug}-{self.digest[:12]}-{stage}-{number}"

    def deployed(self, prefix: str, stage: int, number: int) -> str:
        """Return the name that a function of a stage has in AWS, in the stack of functions that begin with `prefix`."""
        stage, number = self.home(stage, number)
        return f"{prefix}-{self.digest[:12]}-{stage}-{number}"
