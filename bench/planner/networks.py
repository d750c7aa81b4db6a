"""Public architectures of torchvision and timm, with random weights, split on 2x2 tiles."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from onnxscript import ir

import serfer
from bench.core.results import Table
from serfer.cli.shared.options import JsonOption, print_json, status_line
from serfer.core.errors import ModelError, UsageError
from serfer.core.exactness import TOLERANCE, difference
from splitter.network.graph import MAP_RANK, Graph
from splitter.network.source import load
from splitter.network.unsupported import unsplit_kinds
from splitter.network.zoo import with_random_weights
from splitter.plan_dir.check import run_tiles
from splitter.tiling.from_onnx import from_onnx
from splitter.tiling.operators import tiled_kinds

if TYPE_CHECKING:
    import torch

_BEGIN, _END = "<!-- {} begin: written by serfer bench networks --write -->", "<!-- {} end -->"
GRID = "2x2"
_ROOMY_MB = 4096
"""A package in which any of the networks fits as one stage."""


@dataclass(frozen=True)
class Network:
    """An architecture of `library`, at square images of `size` pixels."""

    library: str
    name: str
    size: int = 96

    def build(self) -> torch.nn.Module:
        """Return the network with random weights, in evaluation mode."""
        if self.library == "timm":
            module: torch.nn.Module = import_module("timm").create_model(self.name, pretrained=False)
        else:
            options: dict[str, Any] = {"weights": None}
            if self.name in ("googlenet", "inception_v3"):
                options |= {"aux_logits": False, "init_weights": False}
            module = getattr(import_module("torchvision").models, self.name)(**options)
        return with_random_weights(module.eval(), self.size)


@dataclass(frozen=True)
class Row:
    """The split of a network: its stages' grids, and how many of its convolutions on maps are on 2x2 tiles.

    `error` is relative to the logits' range; `reason` is why a network was refused, else empty.
    """

    network: Network
    grids: tuple[str, ...] = ()
    tiled: int = 0
    convolutions: int = 0
    error: float = 0.0
    reason: str = ""

    @property
    def outcome(self) -> str:
        """One of "all", "some", "none" (of the convolutions are tiled) and "refused"."""
        if self.reason:
            return "refused"
        return "all" if self.tiled == self.convolutions > 0 else "some" if self.tiled else "none"


_TORCHVISION = (
    *(Network("torchvision", name) for name in ("alexnet", "densenet121", "efficientnet_b0", "googlenet")),
    *(Network("torchvision", name) for name in ("mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf")),
    *(Network("torchvision", name) for name in ("regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d")),
    *(Network("torchvision", name) for name in ("shufflenet_v2_x0_5", "squeezenet1_1", "convnext_tiny", "vgg11_bn")),
    Network("torchvision", "inception_v3", 107),
    Network("torchvision", "swin_t"),
    Network("torchvision", "vit_b_32", 224),
)
_TIMM = (
    *(Network("timm", name) for name in ("resnet10t", "resnet18d", "seresnet18", "skresnet18", "res2net50_14w_8s")),
    *(Network("timm", name) for name in ("dla34", "cspresnet50", "ese_vovnet19b_dw", "gernet_s", "repvgg_a0")),
    *(Network("timm", name) for name in ("mobileone_s0", "lcnet_050", "tinynet_e", "fbnetc_100", "mixnet_s")),
    *(Network("timm", name) for name in ("mobilenetv4_conv_small", "ghostnet_100", "repghostnet_050", "rexnet_100")),
    *(Network("timm", name) for name in ("tf_efficientnet_lite0", "convnext_atto", "convnextv2_atto", "starnet_s1")),
    *(Network("timm", name) for name in ("mambaout_femto", "poolformer_s12", "inception_next_atto", "repvit_m0_9")),
    *(Network("timm", name) for name in ("hrnet_w18_small", "efficientvit_b0", "edgenext_xx_small", "fastvit_t8")),
    *(Network("timm", name, 128) for name in ("mobilevit_xxs", "darknet53", "selecsls42b")),
    *(Network("timm", name, 224) for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "mixer_s32_224")),
)
NETWORKS = _TORCHVISION + _TIMM


def chosen(names: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks of these names, or all; raises UsageError for a name that is not among them."""
    known = {network.name: network for network in NETWORKS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not among the networks that are tried: {', '.join(sorted(known))}")
    return tuple(known[name] for name in names) or NETWORKS


def measure(network: Network) -> Row:
    """Export a network, split it on 2x2 tiles wherever it can be, and compare the tiles with the module."""
    example = np.random.default_rng(2).standard_normal((1, 3, network.size, network.size), dtype=np.float32)
    with tempfile.TemporaryDirectory() as home:
        try:
            source, _ = load(network.build(), example)
            file = Path(home) / "net.onnx"
            ir.save(source.onnx.whole(), file)
            plan = serfer.split(file, out=Path(home) / "plan", grids=GRID, limit_mb=_ROOMY_MB)
        except ModelError as refusal:
            return Row(network, reason=_kinds_only(str(refusal)))
        graph = from_onnx(source.onnx, network.size, network.size)
        deviation = difference(run_tiles(plan, Path(home) / "plan", example), source.run(example))
    on_maps = {node.name for node in graph.nodes if node.kind == "Conv" and _is_map(graph, node.output)}
    tiled = {item.name for stage in plan.stages if str(stage.grid) == GRID for item in stage.operators} & on_maps
    grids = tuple(str(stage.grid) for stage in plan.stages)
    return Row(network, grids, len(tiled), len(on_maps), deviation.error)


def _is_map(graph: Graph, tensor: str) -> bool:
    return len(graph.shapes[tensor]) == MAP_RANK and graph.shape(tensor).whole.area > 1


def _kinds_only(reason: str) -> str:
    """Leave out the operator's name, which the exporter numbers as it likes, and the place of a temporary file."""
    reason = re.sub(r"Load model from \S+ failed", "Load model failed", reason)
    start, mark, rest = reason.partition("' (")
    return f"({rest}" if mark and start.startswith("operator '") else reason


def networks_table(rows: Iterable[Row]) -> Table:
    """Return the rows as a table."""
    return Table(("network", "from", "input", "convolutions on 2x2", "stages"), [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    how = ("refused", row.reason) if row.reason else (f"{row.tiled} of {row.convolutions}", ", ".join(row.grids))
    return row.network.name, row.network.library, str(row.network.size), *how


def operators_table() -> Table:
    """Return the operators that the splitter has rules for, from their registry, as a table."""
    unsplit = unsplit_kinds()
    return Table(("how", "operators"), [(how, ", ".join(kinds)) for how, kinds in {**tiled_kinds(), **unsplit}.items()])


def section(text: str, name: str) -> str:
    """Return what stands between the marks of a generated part of a document."""
    begin, end = _BEGIN.format(name), _END.format(name)
    if begin not in text or end not in text:
        raise UsageError(f"the document has no part marked {begin!r} to {end!r}")
    return text.partition(begin)[2].partition(end)[0].strip()


def with_section(text: str, name: str, content: str) -> str:
    """Return a document with a generated part written again."""
    section(text, name)
    begin, end = _BEGIN.format(name), _END.format(name)
    return f"{text.partition(begin)[0]}{begin}\n{content}\n{end}{text.partition(end)[2]}"


def write_tables(path: Path, rows: Sequence[Row]) -> None:
    """Write the tables into a document that has their marks."""
    text = with_section(path.read_text(encoding="utf-8"), "networks", networks_table(rows).markdown())
    path.write_text(with_section(text, "operators", operators_table().markdown()), encoding="utf-8")


def is_exact(row: Row) -> bool:
    """Return whether the tiles answer as the module does."""
    return not row.reason and row.error <= TOLERANCE


def command(
    only: Annotated[list[str] | None, typer.Option(help="A network of the list alone; may be given again.")] = None,
    write: Annotated[Path | None, typer.Option(help="A document whose tables to write again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Split public architectures on 2x2 tiles and report the outcomes (docs/reference/networks.md); needs timm."""
    if write and only:
        raise UsageError("--write writes the whole table: leave --only out")
    networks, rows = chosen(only or []), []
    with status_line() as progress:
        for number, network in enumerate(networks, start=1):
            progress(f"{network.name} ({number} of {len(networks)})")
            rows.append(measure(network))
            if as_json:
                print_json({**asdict(rows[-1]), "outcome": rows[-1].outcome})
    if write:
        write_tables(write, rows)
    if not as_json:
        typer.echo(networks_table(rows).markdown())
