"""What passes read in place of the image, and what they keep: the cheapest of all ways."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.plan import MapStatistics
from serfer.splitter.network.graph import STATISTICS, Graph, Node, Statistic
from serfer.splitter.windows.sections import Prices, Section, _cheapest, sections_of

SIDE = 8


def graph_of(nodes, statistics=(), weights=None, output=None):
    shapes = dict.fromkeys(("x", *(node.output for node in nodes)), (1, 1, SIDE, SIDE))
    shapes |= {node.output: (1, 1) for node in nodes if node.kind == "Slice"} | {STATISTICS: (1, len(statistics))}
    fixed = frozenset({STATISTICS, *(node.output for node in nodes if node.kind == "Slice")})
    outputs = (output or nodes[-1].output,)
    return Graph(tuple(nodes), weights or {}, "x", outputs, shapes, 21, statistics=tuple(statistics), fixed=fixed)


@st.composite
def networks(draw):
    """A few operators, each of one or two maps before it, with a price of each map and each operator."""
    nodes = []
    for number in range(draw(st.integers(2, 6))):
        before = ["x", *(f"t{each}" for each in range(number))]
        inputs = draw(st.lists(st.sampled_from(before), min_size=1, max_size=2, unique=True))
        nodes.append(Node(f"t{number}", "Sum", tuple(inputs), f"t{number}"))
    target = nodes[-1].output
    earlier = draw(st.sets(st.sampled_from([node.output for node in nodes[:-1]])))
    price = st.integers(1, 9)
    read = {name: draw(price) for name in sorted({"x", *earlier})}
    compute = {node.output: draw(price) for node in nodes}
    return graph_of(nodes), target, read, compute


def price_of(graph, target, reads, read, compute):
    """What reading some maps, and computing all else that the target needs, costs; None where something is missing."""
    needed, cost = {target}, sum(read[name] for name in reads)
    for node in reversed(graph.nodes):
        if node.output in needed and node.output not in reads:
            needed.update(node.inputs)
            cost += compute[node.output]
    return None if "x" in needed and "x" not in reads else cost


@settings(max_examples=150, deadline=None)
@given(networks())
def test_no_other_choice_of_maps_is_cheaper(network):
    graph, target, read, compute = network
    found = _cheapest(graph, [target], read, lambda node: compute[node.output])
    ways = [
        [name for name, chosen in zip(read, bits, strict=True) if chosen]
        for bits in product((False, True), repeat=len(read))
    ]
    prices = [price_of(graph, target, way, read, compute) for way in ways]
    assert price_of(graph, target, found, read, compute) == min(each for each in prices if each is not None)


def test_a_map_is_kept_by_the_pass_that_computes_it_and_never_read_before():
    statistics = [Statistic(f"c{number}", number, MapStatistics(number, 1, ("mean",))) for number in range(3)]
    nodes, weights, before = [], {}, "x"
    for number in range(3):
        weights |= {f"at{number}": np.array([number]), f"to{number}": np.array([number + 1]), "axis": np.array([1])}
        nodes += [
            Node(f"c{number}", "Conv", (before,), f"c{number}"),
            Node(f"s{number}", "Slice", (STATISTICS, f"at{number}", f"to{number}", "axis"), f"s{number}"),
            Node(f"n{number}", "Sub", (f"c{number}", f"s{number}"), f"n{number}"),
        ]
        before = f"n{number}"
    nodes.append(Node("skip", "Add", ("n2", "n0"), "skip"))
    graph = graph_of(nodes, statistics, weights)
    free = sections_of(graph, 3, Prices(lambda _: 1.0, lambda _: 0.0, lambda _: 0.0))
    assert free == (
        Section((), ("c0",)),
        Section(("c0",), ("n0", "c1")),  # what the skip reads is known in this pass, not in the one of its source
        Section(("c1",), ("c2",)),
        Section(("n0", "c2"), ()),
    )
    dear = sections_of(graph, 3, Prices(lambda _: 1e-3, lambda _: 10.0, lambda _: 10.0))
    assert dear == (Section(),) * 4
