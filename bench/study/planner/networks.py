"""Public architectures of torchvision, timm and smp, with random weights, split on 2x2 tiles."""

from __future__ import annotations

import csv
import difflib
import importlib.util
import io
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from onnxscript import ir

import serfer
from serfer.cli.shared.options import JsonOption, print_json, status_line
from serfer.core.errors import ModelError, UsageError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, difference
from serfer.core.plan import AS_IS
from serfer.splitter.network.graph import MAP_RANK, Graph
from serfer.splitter.network.named_models import RANDOM, NamedModel, build
from serfer.splitter.network.source import Source, load
from serfer.splitter.network.unsupported import CannotSplitError
from serfer.splitter.network.zoo import drawn_by_seed, with_random_weights
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.tiling.from_onnx import from_onnx, split_graph
from serfer_bench.core.tables import Table

if TYPE_CHECKING:
    import torch

GRID = "2x2"
_ROOMY_MB = 4096
"""A package in which any of the networks fits as one stage."""
"""The module in PyTorch and the tiles in ONNX Runtime each round in an order of their own."""
_SMP = "segmentation_models_pytorch"
_HEADS = ("network", "from", "input", "how", "seconds", "convolutions on 2x2", "stages")
SECONDS = _HEADS.index("seconds")


@dataclass(frozen=True)
class Network:
    """An architecture of `library` ("torchvision", "timm" or "smp"), at square images of `size` pixels."""

    library: str
    name: str
    size: int = 96

    def build(self) -> torch.nn.Module:
        if self.library != "smp":
            named = NamedModel(f"{self.library}:{self.name}", RANDOM)
            named_module: torch.nn.Module = build(named, (3, self.size, self.size)).module
            return named_module
        architecture, _, encoder = self.name.partition("-")
        with drawn_by_seed():
            module: Any = import_module(_SMP).create_model(architecture, encoder, encoder_weights=None)
        return with_random_weights(module.eval(), self.size)

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(_SMP if self.library == "smp" else self.library) is not None


@dataclass(frozen=True)
class Row:
    """The split of a network: its stages' grids, and how many of its convolutions on maps are on 2x2 tiles.

    `error` is relative to the logits' range, and so is `rounding`: how far the module in float32 is from itself in
    float64, taken where the error is not within the tolerance. `reason` is why a network was refused, else empty.
    `seconds` of a processor were taken by export and split. With `as_is`, what depends on an operator without a rule is
    one operator, whose convolutions are not counted.
    """

    network: Network
    grids: tuple[str, ...] = ()
    tiled: int = 0
    convolutions: int = 0
    error: float = 0.0
    rounding: float = 0.0
    reason: str = ""
    seconds: float = 0.0
    as_is: bool = False

    @property
    def how(self) -> str:
        """One of "tiled", "in part", "whole" (as all, some or none of its convolutions are on tiles) and "refused"."""
        if self.reason:
            return "refused"
        all_tiled = self.tiled == self.convolutions > 0 and not self.as_is
        return "tiled" if all_tiled else "in part" if self.tiled else "whole"

    @property
    def cells(self) -> tuple[str, ...]:
        counts = "" if self.reason else f"{self.tiled} of {self.convolutions}"
        known = self.network.name, self.network.library, str(self.network.size), self.how, f"{self.seconds:.0f}"
        return *known, counts, self.reason or in_runs(self.grids)


def in_runs(grids: Iterable[str]) -> str:
    """Write grids with those that follow each other counted: 3 x 2x2, 1."""
    runs = [(grid, len([*same])) for grid, same in groupby(grids)]
    return ", ".join(grid if count == 1 else f"{count} x {grid}" for grid, count in runs)


def _architectures() -> Iterator[Network]:
    text = Path(__file__).with_name("architectures.txt").read_text(encoding="utf-8")
    for section in text.split("[")[1:]:
        head, names = section.split("]")
        library, size = head.split()
        for name, _, own in (entry.partition(":") for entry in names.split()):
            yield Network(library, name, int(own or size))


NETWORKS = tuple(_architectures())


def chosen(names: Sequence[str]) -> tuple[Network, ...]:
    known = {network.name: network for network in NETWORKS}
    unknown = [name for name in names if name not in known]
    if unknown:
        near = ", ".join(difflib.get_close_matches(unknown[0], known, 3)) or "see bench/study/planner/architectures.txt"
        raise UsageError(f"{unknown[0]!r} is not among the networks that are tried: {near}")
    return tuple(known[name] for name in names) or NETWORKS


def measure(network: Network) -> Row:
    example = np.random.default_rng(2).standard_normal((1, 3, network.size, network.size), dtype=np.float32)
    with tempfile.TemporaryDirectory() as home:
        module, began = network.build(), time.process_time()
        try:
            source, _ = load(module, example)
            file = Path(home) / "net.onnx"
            ir.save(source.onnx.whole(), file)
            # no cold queries: rows are of what can be tiled, and not of how soon functions start
            plan = serfer.split(file, out=Path(home) / "plan", grids=GRID, limit_mb=_ROOMY_MB, cold_share=0)
        except (ModelError, WrongAnswerError) as refusal:
            return Row(network, reason=_kinds_only(str(refusal)), seconds=time.process_time() - began)
        seconds = time.process_time() - began
        graph = _graph(source, example)
        deviation = difference(run_tiles(plan, Path(home) / "plan", example), source.run(example)).error
    rounding = _rounding(module, example) if deviation > TOLERANCE else 0.0
    on_maps = {node.name for node in graph.nodes if node.kind == "Conv" and _is_map(graph, node.output)}
    tiled = {item.name for stage in plan.stages if str(stage.grid) == GRID for item in stage.operators} & on_maps
    grids = tuple(str(stage.grid) for stage in plan.stages)
    as_is = any(node.kind == AS_IS for node in graph.nodes)
    return Row(network, grids, len(tiled), len(on_maps), deviation, rounding, seconds=seconds, as_is=as_is)


def _rounding(module: torch.nn.Module, example: NDArray[np.float32]) -> float:
    """Return how far a module's answer in float32 is from that in float64, which it is left in."""
    import torch  # noqa: PLC0415 - slow to import
    from torch.utils import _pytree as tree  # noqa: PLC0415 - as above

    def answer() -> dict[str, NDArray[Any]]:
        kind = next(module.parameters()).dtype
        with torch.no_grad():
            outputs = module(torch.from_numpy(example).to(kind))
        return {str(number): output.numpy() for number, output in enumerate(tree.tree_leaves(outputs))}

    single = answer()
    module.double()
    return difference(single, answer()).error


def _graph(source: Source, example: NDArray[np.float32]) -> Graph:
    try:
        return from_onnx(source.onnx, *example.shape[2:])
    except CannotSplitError as refusal:
        return split_graph(source, example, refusal)[0]


def _is_map(graph: Graph, tensor: str) -> bool:
    return len(graph.shapes[tensor]) == MAP_RANK and graph.shape(tensor).whole.area > 1


def _kinds_only(reason: str) -> str:
    """Leave out the operator's name, which the exporter numbers as it likes, and the place of a temporary file."""
    reason = re.sub(r"Load model from \S+ failed", "Load model failed", reason)
    start, mark, rest = reason.partition("' (")
    return f"({rest}" if mark and start.startswith("operator '") else reason


def known_rows(text: str) -> Mapping[Network, tuple[str, ...]]:
    rows = [tuple(cells) for cells in csv.reader(text.splitlines())]
    if not rows or rows[0] != _HEADS:
        raise UsageError(f"the table does not begin with {','.join(_HEADS)}")
    return {Network(cells[1], cells[0], int(cells[2])): cells for cells in rows[1:]}


def write_table(path: Path, measured: Iterable[Row]) -> None:
    known = {**known_rows(path.read_text(encoding="utf-8")), **{row.network: row.cells for row in measured}}
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(
        [_HEADS, *(known[network] for network in NETWORKS if network in known)]
    )
    path.write_text(table.getvalue(), encoding="utf-8")


def command(
    only: Annotated[list[str] | None, typer.Option(help="A network of the list alone; may be given again.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="A table in CSV into which to write the rows, each when it is there.")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only networks whose seconds are not in the table.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Split public architectures on 2x2 tiles and report the outcomes (docs/results/data/networks.csv); needs timm.

    Those of smp are left out where segmentation_models_pytorch is not installed.
    """
    if missing and not write:
        raise UsageError("--missing is about what a table lacks: give --write")
    networks, rows = [network for network in chosen(only or []) if network.installed], []
    if write and missing:
        known = known_rows(write.read_text(encoding="utf-8"))
        networks = [network for network in networks if not known.get(network, _HEADS)[SECONDS].isdigit()]
    with status_line() as progress:
        for number, network in enumerate(networks, start=1):
            progress(f"{network.name} ({number} of {len(networks)})")
            rows.append(measure(network))
            if as_json:
                print_json({**asdict(rows[-1]), "how": rows[-1].how})
            if write:
                write_table(write, rows[-1:])
    if not as_json:
        typer.echo(Table(_HEADS, [row.cells for row in rows]).markdown())
