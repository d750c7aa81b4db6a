"""The cold plan: the plan with the earliest first answer where nothing is warm, beside the plan for warm queries."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_queries import ColdChoice, price_cold
from serfer.core.costs.cost_model import Platform
from serfer.core.errors import ModelError, UsageError
from serfer.core.plan import FETCHED, PackageLimit
from serfer.core.units import MIB
from serfer.plan_directory import check_artefacts, load_cold_plan, load_plan
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.planning.cold.plan import EARLIER, SLACK, find_cold_plan
from serfer.splitter.planning.cold.search import ColdSearch
from serfer.splitter.planning.limits import FunctionLimits, WeightStorage, column_bytes
from serfer.splitter.planning.planner import choices_of, prepare
from serfer.splitter.planning.split_options import Budget, SplitOptions
from serfer.splitter.split import split
from serfer.splitter.tiling.cuts import cut_points
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import ONE, GridChoice, parse_grids
from tests.once import one_each
from tests.splitter.models import plan_error
from tests.splitter.planning.test_weight_places import NETWORKS

AWS = shipped_aws()
SLOW = replace(AWS, functions=replace(AWS.functions, bandwidth=2e4, load_rate=1e6, init=0.1))
"""Small networks take as long to fetch as large ones on Lambda."""
FREE = SplitOptions(weights=FETCHED)


def graph_of(network):
    net, output = NETWORKS[network]()
    return with_tile_pools(net.graph(output))


def budget(facts=SLOW, **changes):
    return replace(Budget(PackageLimit(8 * MIB, MIB), facts, (1769, 3538)), **changes)


@pytest.fixture
def planned(tmp_path):
    def plan(network="head_heavy", **options):
        net, output = NETWORKS[network]()
        defaults = {"weights": "fetched", "facts": SLOW, "gang": "never"}
        return split(net.save(tmp_path, output), out=tmp_path / "plan", **defaults | options)

    return plan


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("most", [1, 2, 4])
def test_the_search_finds_the_earliest_first_answer(network, most):
    """Against every chain, one by one."""
    graph, within = graph_of(network), budget(max_tiles=most)
    storage = WeightStorage(places=(FETCHED,), apart=True)
    search = prepare(graph, cut_points(graph), GridChoice(), None, within, storage)
    cold = ColdSearch(search, within.platform, most)
    priced = [*_every_chain(cold, most)]
    earliest = min(seconds for seconds, _, _ in priced)
    assert cold.earliest == pytest.approx(earliest)
    found = cold.best(SLACK)
    assert any((found.seconds, found.usd) == pytest.approx((seconds, usd)) for seconds, usd, _ in priced)
    assert found.seconds <= earliest * (1 + SLACK) * (1 + 1e-9)
    assert found.environments <= most
    exact = cold.best(0.0)
    assert exact.seconds == pytest.approx(earliest)
    assert found.usd <= exact.usd * (1 + 1e-9)


def _every_chain(cold, most):
    """Yield the first answer, dollars and environments of every chain with every memory."""
    by_start = {}
    for each in cold._edges:
        by_start.setdefault((each.edge.start, each.edge.before), []).append(each)
    states = [((0, 0), 0, 0, 0.0, 0.0, 0)]
    while states:
        vertex, path, grid, seconds, usd, count = states.pop()
        if vertex in cold._last:
            yield seconds, usd, count
            continue
        for each in by_start.get((vertex, path), ()):
            edge = each.edge
            for memory in range(len(edge.seconds)) if count + each.environments <= most else ():
                ended = max(seconds, each.ready) + edge.seconds[memory, grid]
                paid = usd + edge.usd[memory, grid] + each.starting_usd[memory]
                if np.isfinite(ended):
                    states.append((edge.stop, edge.after, edge.grid, ended, paid, count + each.environments))


def test_one_environment_is_one_stage_and_more_never_answer_later():
    graph = graph_of("head_heavy")
    found = [find_cold_plan(graph, replace(FREE, cold_environments=count), budget()) for count in (1, 2, 4, 8)]
    assert [choice.grid for choice in choices_of(found[0].chain)] == [ONE]
    assert found[0].environments == 1
    seconds = [plan.seconds for plan in found]
    assert all(later <= earlier * (1 + SLACK) for earlier, later in pairwise(seconds))
    assert seconds[-1] < seconds[0] / 2


def test_each_group_of_columns_is_a_function_with_its_share_of_the_weights(planned, tmp_path):
    """So that an environment fetches its share, and not the whole layer."""
    planned(cold_plan="always")
    cold = load_plan(tmp_path / "plan/cold")
    (spread,) = [stage for stage in cold.stages if stage.grid.columns]
    assert len(spread.functions) == spread.grid.tiles
    assert [tile.function for tile in spread.tiles] == [*range(spread.grid.tiles)]
    whole = load_plan(tmp_path / "plan").artefacts
    largest = max(artefact.bytes for artefact in whole if artefact.path.endswith(".bin"))
    assert max(function.weights.bytes for function in spread.functions) < largest / spread.grid.tiles + 2000


def test_the_size_of_a_group_of_columns_is_what_its_file_has():
    graph = graph_of("head_heavy")
    storage = WeightStorage(places=(FETCHED,), apart=True)
    search = prepare(graph, cut_points(graph), GridChoice(parse_grids("col3").options), None, budget(), storage)
    spread = {edge.stage.start: edge.stage for edge in search.edges if edge.stage.work.grid.columns}.values()
    limits = FunctionLimits(graph, budget(), storage)
    for stage in spread:
        fit = limits.of_stage(stage.work)
        assert fit.apart
        assert fit.weight_bytes == column_bytes(graph, graph.nodes[stage.start : stage.stop], stage.work.grid)
    assert spread


@one_each("grids", ["auto", (2, 2), (1, 3)], ("network", NETWORKS))
def test_a_cold_plan_is_of_the_same_network_whatever_the_other_one_looks_like(planned, network, grids, tmp_path):
    """Where it would be the same plan there is none, and the paragraph says so."""
    plan = planned(network, cold_plan="always", grids=grids, facts=AWS, gang="auto")
    cold = load_cold_plan(tmp_path / "plan", plan)
    for written, place in ((plan, tmp_path / "plan"), (cold, tmp_path / "plan/cold")):
        if written:
            check_artefacts(written, place)
            assert plan_error(*NETWORKS[network](), written, place) < 1e-5
    assert load_plan(tmp_path / "plan") == plan
    assert ("the one with the earliest first answer is this plan" in plan.why) == (cold is None)
    assert ("has the cold plan" in plan.why) == (cold is not None)
    assert (cold is None) <= (grids == "auto")


def test_weights_are_rounded_in_both_plans_or_in_neither(planned, tmp_path):
    plan = planned("many_layers", cold_plan="always", precision="fp16")
    cold = load_cold_plan(tmp_path / "plan", plan)
    net, _ = NETWORKS["many_layers"]()
    batch = net.batch_of(2)
    whole, parts = run_tiles(plan, tmp_path / "plan", batch), run_tiles(cold, tmp_path / "plan/cold", batch)
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    assert cold.changes == plan.changes != ()


@pytest.mark.parametrize(("facts", "written"), [(SLOW, True), (AWS, False)])
def test_auto_writes_one_where_its_first_answer_is_predicted_a_fifth_earlier(planned, tmp_path, facts, written):
    plan = planned(cold_plan="auto", facts=facts)
    assert (tmp_path / "plan/cold").exists() == written
    assert ("has the cold plan" in plan.why) == written
    assert ("There is no cold plan: its first answer would come after" in plan.why) == (not written)
    if written:
        cold = load_cold_plan(tmp_path / "plan", plan)
        choice = ColdChoice.of(plan, cold, Platform.over(facts, plan.store))
        assert choice.split.seconds <= (1 - EARLIER) * choice.whole.seconds
        assert choice.split.environments <= 8
    alone = planned(facts=facts)
    assert (alone.stages, (tmp_path / "plan/cold").exists()) == (plan.stages, False)
    offer = "With cold_plan=auto a query that finds nothing warm would have its first answer after"
    assert (offer in alone.why, "cold_plan" in alone.why) == (written, written)


def test_predictions_in_the_paragraph_are_those_of_the_written_plans(planned, tmp_path):
    plan = planned(cold_plan="always")
    cold = load_cold_plan(tmp_path / "plan", plan)
    choice = ColdChoice.of(plan, cold, Platform.over(SLOW, plan.store))
    after, other, usd = f"{choice.split.seconds:.2f} s", f"{choice.whole.seconds:.2f}", choice.usd - choice.whole.usd
    where = f"on {choice.split.environments} environments, for ${1e6 * usd:.2f} a million such queries more"
    assert f"predicted after {after}, not {other}, {where}" in plan.why
    assert f": after {after}, ${1e6 * choice.split.usd:.2f} a million, predicted." in cold.why


def test_nothing_is_written_where_no_cold_plan_fits(planned, tmp_path):
    """The fully connected layer is too large for the zip of one function."""
    options = {"weights": "zip", "limit_mb": 1, "dependency_bytes": MIB - 60_000, "precision": "fp32"}
    planned(**options)
    before = (tmp_path / "plan/plan.json").read_bytes()
    with pytest.raises(ModelError, match="cold_environments"):
        planned(cold_plan="always", cold_environments=1, **options)
    for wrong in ({"cold_plan": "sometimes"}, {"cold_environments": 0}, {"cold_environments": 33}, {"cold_plan": ""}):
        with pytest.raises(UsageError, match=r"cold.plan|cold.environments"):
            planned(**wrong)
    assert (tmp_path / "plan/plan.json").read_bytes() == before
    assert not (tmp_path / "plan/cold").exists()


@pytest.mark.parametrize("objective", ["latency", "cost"])
def test_a_cold_plan_answers_no_later_than_one_function_does(planned, tmp_path, objective):
    plan = planned(cold_plan="always", objective=objective, max_tiles=2)
    cold = load_cold_plan(tmp_path / "plan", plan)
    assert max(stage.grid.tiles for stage in cold.stages) <= 2
    platform = Platform.over(SLOW, plan.store)
    assert price_cold(cold, platform).seconds <= (1 + SLACK) * price_cold(plan, platform).seconds
