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
from serfer.splitter.planning.search import BALANCED, Chain
from serfer.splitter.planning.split_options import SplitOptions, WeightsMode, memory_sizes
from serfer.splitter.tiling.cuts import Cut, cut_points
from serfer.splitter.tiling.grids import COLUMNS, ONE, GridChoice
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.tables import Column, Measurement, Results, publish, table_of
from serfer_bench.study.planner.planner import Network, read_network, scaled

CONVNEXT_BASE = f"{Path(__file__).with_name('convnext.py')}:convnext_base"
NETWORKS = ("alexnet", "vgg16", "resnet152", CONVNEXT_BASE)
_SIZE = 224
_ENVIRONMENTS = 4, 8
_PLACES: tuple[WeightsMode, ...] = "fetched", "auto"
_MILLION = 1_000_000


@dataclass(frozen=True)
class Way(Measurement):
    """The best plan of a network for the product of latency and dollars, with its weights in one place.

    `ms` and `usd` are of a warm query; `cold_ms` is the first answer where every environment is cold, also where
    packages come half and twice as fast. A plan that is not possible has None.
    """

    model: Annotated[str, Column("network")]
    weights: Annotated[str, Column("weights")]
    precision: Annotated[str, Column("precision")]
    predicted_loss: float
    plan: Annotated[str, Column("plan")]
    ms: Annotated[float | None, Column("warm ms", ",.1f", empty="-")] = None
    usd: Annotated[float | None, Column("$ a million", ",.2f", _MILLION, "-")] = None
    cold_ms: Annotated[float | None, Column("cold first answer ms", ",.0f", empty="-")] = None
    cold_half_ms: Annotated[float | None, Column("packages half as fast", ",.0f", empty="-")] = None
    cold_twice_ms: Annotated[float | None, Column("twice as fast", ",.0f", empty="-")] = None

    def priced(self, chain: Chain, network: Network) -> Way:
        budget = network.budget
        changed = (replace(budget, facts=scaled(budget.facts, "package_rate", times)) for times in (1, 0.5, 2))
        cold_ms = [MS_PER_S * first_answer(chain, one.platform) for one in changed]
        prices = MS_PER_S * chain.seconds, chain.usd, *cold_ms
        return Way(self.model, self.weights, self.precision, self.predicted_loss, describe(steps_of(chain)), *prices)


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
        way = Way(network.name, what, "fp16" if half else "fp32", loss, "does not fit")
        yield way.priced(chain, network) if chain else way


def cold_ways(network: Network) -> Iterator[Way]:
    for weights, most in product(_PLACES, _ENVIRONMENTS):
        options = SplitOptions(weights=weights, cold_environments=most)
        found = find_cold_plan(network.graph, options, network.budget)
        if found:
            way = Way(network.name, f"cold plan of at most {most}, {weights}", "fp32", 0.0, "")
            yield way.priced(found.chain, network)


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
    note = "all predicted, for account=default: nothing ran"
    records = [asdict(row) for row in rows]
    publish(Results(records, [table_of(rows)], [note]), as_json=as_json, as_markdown=as_markdown)
