"""The network of a plan as boxes: which operators read which, and which of them make one box."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from serfer.core.errors import PlanError
from serfer.core.plan import Plan
from serfer.plan_directory import file_sha256

if TYPE_CHECKING:
    import onnx

IMAGE_BOX = -1
MOST_BOXES = 320
_HELPER = re.compile(r"(.+)\.(?:mean|padded|whole|view\d+)")  # what splitter/plan_dir/emit.py puts before an operator
_SHORT = {
    "AveragePool": "AvgPool",
    "BatchNormalization": "BatchNorm",
    "Gemm": "Linear",
    "GlobalAveragePool": "GlobalAvgPool",
    "TileSum": "Sum",
}
_GATES = {"Sigmoid": "SiLU", "HardSigmoid": "HardSwish"}
_FOLLOWERS = frozenset(
    [
        *("Add", "BatchNormalization", "Cast", "Clip", "Div", "Dropout", "Elu", "Flatten", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "LRN", "LeakyRelu", "Mul", "PRelu", "Relu", "Reshape", "Selu", "Sigmoid", "Softmax"),
        *("Softplus", "Squeeze", "Sub", "Tanh", "TileSum", "Unsqueeze"),
    ]
)
_MOST_LABELS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a stage and those that it reads: their numbers, or IMAGE_BOX for the image."""

    kind: str
    label: str
    macs: int
    stage: int
    reads: tuple[int, ...]


@dataclass(slots=True)
class Box:
    """Operators of one stage that are drawn as one; `reads` are the numbers of other boxes, or IMAGE_BOX."""

    stage: int
    labels: list[str] = field(default_factory=list)
    macs: int = 0
    reads: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The text of the box."""
        if len(self.labels) <= _MOST_LABELS:
            return " + ".join(self.labels)
        kinds = Counter(label.split(" ")[0] for label in self.labels)
        return ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.most_common(_MOST_LABELS))


def read_steps(plan: Plan, directory: Path) -> list[Step]:
    """Return the plan's operators with what they read, from its unsplit network; raises PlanError where they differ."""
    model = _model(plan, directory)
    listed = [(number, operator) for number, stage in enumerate(plan.stages) for operator in stage.operators]
    operators = _operators(model, {name for node in model.graph.node for name in node.output})
    if len(operators) != len(listed):  # what the image or the answer was called before is no longer known
        operators = _operators(model, None)
    if len(operators) != len(listed):
        raise PlanError(
            f"{directory / plan.unsplit.path} has {len(operators)} operators, plan.json {len(listed)}; "
            "split the model again"
        )
    return [
        Step(operator.kind, _label(operator.kind, sizes), operator.macs, stage, reads)
        for (reads, sizes), (stage, operator) in zip(operators, listed, strict=True)
    ]


def _model(plan: Plan, directory: Path) -> onnx.ModelProto:
    import onnx  # noqa: PLC0415 - slow to import

    path = directory / plan.unsplit.path
    try:
        if path.stat().st_size != plan.unsplit.bytes or file_sha256(path) != plan.unsplit.sha256:
            raise PlanError(f"{path} was altered: its digest does not match plan.json; split the model again")
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror or error}; split the model again") from error


_Sizes = dict[str, tuple[int, ...]]


def _operators(model: onnx.ModelProto, names: set[str] | None) -> list[tuple[tuple[int, ...], _Sizes]]:
    """Return what each operator reads, and its kernel and strides.

    Nodes that only make weights are none, nor are those that prepare another's input: they are called after a tensor,
    one of `names` where these are given.
    """
    made: dict[str, tuple[int, ...]] = {value.name: (IMAGE_BOX,) for value in model.graph.input}
    kept: dict[str, _Sizes] = {}
    operators: list[tuple[tuple[int, ...], _Sizes]] = []
    for node in model.graph.node:
        read = [name for name in node.input if name in made]
        if not read:
            continue
        sources = tuple(dict.fromkeys(source for name in read for source in made[name]))
        sizes = {item.name: tuple(item.ints) for item in node.attribute if item.name in {"kernel_shape", "strides"}}
        sizes = {**next((kept[name] for name in read if name in kept), {}), **sizes}
        base = _HELPER.fullmatch(node.output[0])
        if base and (names is None or base[1] in names):
            made[node.output[0]], kept[node.output[0]] = sources, sizes
            continue
        made |= dict.fromkeys(node.output, (len(operators),))
        operators.append((sources, sizes))
    return operators


def _label(kind: str, sizes: _Sizes) -> str:
    """Return an operator's kind as people write it, with its kernel and strides: Conv 3x3/2."""
    name, kernel, strides = _SHORT.get(kind, kind), sizes.get("kernel_shape", ()), sizes.get("strides", ())
    if not kernel:
        return name
    step = "" if all(stride == 1 for stride in strides) else f"/{'x'.join(map(str, dict.fromkeys(strides)))}"
    return f"{name} {'x'.join(map(str, kernel))}{step}"


def fold(steps: Sequence[Step], most: int = MOST_BOXES) -> list[Box]:
    """Make boxes of operators: Conv and its Relu become one, and where there are many, whole runs without branches."""
    boxes = _folded(steps, anything=False)
    return boxes if len(boxes) <= most else _folded(steps, anything=True)


def _folded(steps: Sequence[Step], *, anything: bool) -> list[Box]:
    readers: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for source in step.reads:
            readers.setdefault(source, []).append(number)
    boxes: list[Box] = []
    home: dict[int, int] = {IMAGE_BOX: IMAGE_BOX}
    for number, step in enumerate(steps):
        sources = tuple(dict.fromkeys(home[source] for source in step.reads))
        joined = _joins(steps, number, readers, anything=anything) and len(sources) == 1
        if joined and steps[step.reads[0]].stage == step.stage:
            home[number] = sources[0]
            _add(boxes[sources[0]], step, gate=_gate(steps, step))
        else:
            home[number] = len(boxes)
            boxes.append(Box(step.stage, [step.label], step.macs, sources))
    return boxes


def _joins(steps: Sequence[Step], number: int, readers: dict[int, list[int]], *, anything: bool) -> bool:
    """Return whether an operator is drawn in the box of what it reads: it is small, and the only reader of that."""
    step = steps[number]
    if IMAGE_BOX in step.reads or not (anything or step.kind in _FOLLOWERS or steps[step.reads[0]].kind == "Pad"):
        return False
    if _gate(steps, step):
        return set(readers[step.reads[0]]) == {step.reads[1], number}
    only, source = readers[step.reads[0]], step.reads[0]
    return (
        only == [number]
        or (step.kind in _GATES and any(_gate(steps, steps[other]) and set(only) == {number, other} for other in only))
        if len(step.reads) == 1 and source != IMAGE_BOX
        else False
    )


def _gate(steps: Sequence[Step], step: Step) -> str | None:
    """Return the name of x * sigmoid(x), where the operator is its multiplication."""
    if step.kind != "Mul" or len(step.reads) != 2 or IMAGE_BOX in step.reads:  # noqa: PLR2004 - x and its gate
        return None
    value, gate = sorted(step.reads)
    return _GATES.get(steps[gate].kind) if steps[gate].reads == (value,) else None


def _add(box: Box, step: Step, gate: str | None) -> None:
    if gate:
        box.labels[-1] = gate
    else:
        box.labels.append(step.label)
    box.macs += step.macs


def rows_of(boxes: Sequence[Box]) -> list[int]:
    """Return each box's row: below all that it reads, and below every box of the stages before."""
    rows: list[int] = []
    first: dict[int, int] = {}
    for box in boxes:
        if box.stage not in first:
            first[box.stage] = max(rows, default=-1) + 1
        rows.append(max([first[box.stage], *(rows[source] + 1 for source in box.reads if source != IMAGE_BOX)]))
    return rows


def slots_of(boxes: Sequence[Box], rows: Sequence[int]) -> list[int]:
    """Return each box's slot, counted from the left: below one that it reads if it can be, and where nothing waits."""
    near = near_rows(boxes, rows)
    taken: dict[int, set[int]] = {}
    slots = [0] * len(boxes)
    for number in sorted(range(len(boxes)), key=lambda index: (rows[index], index)):
        row = rows[number]
        wishes = [slots[source] for source in boxes[number].reads if source >= 0 and near.get(source) == row]
        slots[number] = _nearest(sorted(wishes) or [0], taken.setdefault(row, set()))
        taken[row].add(slots[number])
        for between in range(row + 1, near.get(number, row)):
            taken.setdefault(between, set()).add(slots[number])
    return slots


def _nearest(wishes: Sequence[int], taken: set[int]) -> int:
    free = next((wish for wish in wishes if wish not in taken), None)
    return free if free is not None else next(slot for slot in range(len(taken) + 1) if slot not in taken)


def near_rows(boxes: Sequence[Box], rows: Sequence[int]) -> dict[int, int]:
    """Return, for each box that is read, the first row where it is; a line goes straight down to there."""
    near: dict[int, int] = {}
    for number, box in enumerate(boxes):
        for source in box.reads:
            near[source] = min(near.get(source, rows[number]), rows[number])
    return near


def far_edges(boxes: Sequence[Box], rows: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Return what is read again below its first readers: (box, reader)."""
    near = near_rows(boxes, rows)
    for number, box in enumerate(boxes):
        yield from ((source, number) for source in box.reads if rows[number] > near[source])


def lanes_of(boxes: Sequence[Box], rows: Sequence[int]) -> dict[int, int]:
    """Give every box that is read again further below a lane on the left, the innermost one that is free."""
    last: dict[int, int] = {}
    for source, reader in far_edges(boxes, rows):
        last[source] = max(last.get(source, 0), rows[reader])
    lanes: dict[int, int] = {}
    for source in sorted(last, key=lambda number: rows[number] if number >= 0 else -1):
        start = rows[source] if source >= 0 else -1
        busy = {lanes[other] for other in lanes if last[other] > start}
        lanes[source] = next(lane for lane in range(len(busy) + 1) if lane not in busy)
    return lanes
