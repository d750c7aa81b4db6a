"""Places and precisions of weights, priced: what each allows the planner, warm and cold, as predicted.

For each network the best plan whose weights are in zips, and one function with its weights in a zip, fetched or in an
image, each in fp32 and in fp16; then its cold plan, with fetched weights and with those that zips hold in zips, on at
most four and eight environments. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.plan import WEIGHT_PLACES, ZIP
from serfer.core.units import MS_PER_S
from serfer.settings import load_settings
from serfer.splitter.planning.cold.plan import find_cold_plan
from serfer.splitter.planning.cold.share import first_answer
from serfer.splitter.planning.explanation import describe
from serfer.splitter.planning.limits import WeightStorage
from serfer.splitter.planning.planner import prepare, steps_of
from serfer.splitter.planning.precision import predicted_loss, storable
from serfer.splitter.planning.search import BALANCED
from serfer.splitter.planning.split_options import SplitOptions, WeightsMode, memory_sizes
from serfer.splitter.tiling.cuts import Cut, cut_points
from serfer.splitter.tiling.grids import COLUMNS, ONE, GridChoice
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.tables import Results, publish, table_of
from serfer_bench.study.planner.planner import Network, read_network

CONVNEXT_BASE = f"{Path(__file__).with_name('convnext.py')}:convnext_base"
NETWORKS = ("alexnet", "vgg16", "resnet152", CONVNEXT_BASE)
_SIZE = 224
_ENVIRONMENTS = 4, 8
_PLACES: tuple[tuple[str, WeightsMode], ...] = (("fetched", "fetched"), ("auto", "auto"))
_MILLION = 1_000_000


@dataclass(frozen=True)
class Way:
    """The best plan of a network for the product of latency and dollars, with its weights in one place.

    `ms` and `usd` are of a warm query; `cold_ms` is the first answer where every environment is cold. A plan that is
    not possible has None.
    """

    model: str
    weights: str
    precision: str
    predicted_loss: float
    plan: str
    ms: float | None
    usd: float | None
    cold_ms: float | None

    @property
    def shown(self) -> dict[str, str]:
        return {
            "network": self.model,
            "weights": f"{self.weights}, {self.precision}",
            "plan": self.plan,
            "warm ms": _number(self.ms, 1),
            "$ a million": _number(self.usd and _MILLION * self.usd, 2),
            "cold first answer ms": _number(self.cold_ms, 0),
        }


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def ways(network: Network) -> Iterator[Way]:
    graph, names = network.graph, storable(network.graph, network.graph.nodes)
    whole = [Cut(0, (graph.input,)), Cut(len(graph.nodes), graph.outputs)]
    every = cut_points(graph, network.budget.limit.room)
    kinds = [("split, zips", (ZIP,), every), *((f"one function, {place}", (place,), whole) for place in WEIGHT_PLACES)]
    for (what, places, cuts), half in product(kinds, (False, True)):
        storage = WeightStorage(names if half else frozenset(), always=half, spread=True, places=places)
        grids = GridChoice(for_large=COLUMNS) if cuts is every else GridChoice((ONE,))
        gang = "auto" if cuts is every else "never"
        search = prepare(graph, cuts, grids, None, network.budget, storage, gang=gang)
        chain = search.best(BALANCED) if search.fastest else None
        loss = predicted_loss(graph, names) if half else 0.0
        way = Way(network.name, what, "fp16" if half else "fp32", loss, "does not fit", None, None, None)
        if chain:
            cold_ms = MS_PER_S * first_answer(chain, network.budget.platform)
            way = replace(
                way, plan=describe(steps_of(chain)), ms=MS_PER_S * chain.seconds, usd=chain.usd, cold_ms=cold_ms
            )
        yield way


_NOTE = "all predicted, for account=default: nothing ran"


def cold_ways(network: Network) -> Iterator[Way]:
    for (what, weights), most in product(_PLACES, _ENVIRONMENTS):
        options = SplitOptions(weights=weights, cold_environments=most)
        found = find_cold_plan(network.graph, options, network.budget)
        if found:
            chain = found.chain
            prices = MS_PER_S * chain.seconds, chain.usd, MS_PER_S * found.seconds
            weights_of = f"cold plan of at most {most}, {what}"
            yield Way(network.name, weights_of, "fp32", 0.0, describe(steps_of(chain)), *prices)


def command(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="A model of the zoo, an ONNX file or module.py:factory; may be repeated. Without it AlexNet, "
            "VGG16, ResNet152 and ConvNeXt-Base (bench/study/planner/convnext.py).",
        ),
    ] = None,
    as_markdown: MarkdownOption = False,
    as_json: JsonOption = False,
) -> None:
    """Price the places that weights may have, in fp32 and fp16: warm, and the first answer of a cold plan."""
    facts, rows = load_settings().facts(), list[Way]()
    with status_line() as progress:
        for model in models or NETWORKS:
            progress(f"planning {model}")
            found = read_network(model, _SIZE, facts, memory_mb=memory_sizes(facts.functions))
            rows += [*ways(found), *cold_ways(found)]
    records = [asdict(row) for row in rows]
    publish(Results(records, [table_of(rows)], [_NOTE]), as_json=as_json, as_markdown=as_markdown)
