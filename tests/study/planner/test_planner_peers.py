"""Gillis's and MPHB's planners beside ours: the process that runs theirs, and who is cheaper under either model."""

import math
from importlib.resources import files
from itertools import product

import numpy as np
import pytest

from serfer.core.errors import InputError, SerferError
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.study.baselines.published_costs import GILLIS, PublishedCosts
from serfer_bench.study.planner import peers
from serfer_bench.study.planner.peers.command import answers_of, results
from serfer_bench.study.planner.peers.comparison import Compared, Comparison, Pair, Price, SloAware
from serfer_bench.study.planner.peers.networks import NETWORKS
from serfer_bench.study.planner.peers.programs import Stage, TheirPlan, in_their_form, program_of, run_program
from serfer_bench.study.planner.peers.questions import FASTEST, Question
from serfer_bench.study.planner.peers.recorded_plans import keep, recorded
from serfer_bench.study.planner.peers.templates import TEMPLATES
from tests.bench import running
from tests.splitter.models import Net
from tests.study.planner.test_published_costs import chain

GRAPH = """
from types import SimpleNamespace
import mxnet as mx
from mxnet import ndarray
from utils import relu_a
class Latency:
    def getExp(self, *given):
        return 1.0
comm_latency = Latency()
predictor = SimpleNamespace(_stage_latency=None, _stage_cost=None)
class LayerInfoGraph:
    def __init__(self, model):
        self.model = model
    def get_hybrid_nodes(self):
        return ["conv", "gemm"]
def load_onnx_model(path):
    import onnx
    model = onnx.load(path)
    assert {tensor.name for tensor in model.graph.initializer} <= {value.name for value in model.graph.input}
    return model
"""
DYNAMIC_PROGRAMME = """
from types import SimpleNamespace
from layer_graph import relu_a
def gen_plan(graph):
    print("planning")
    stages = [
        SimpleNamespace(name=[0, 0], partition_shape=(1, 2), func_ids=range(2)),
        SimpleNamespace(name=[1, 1], partition_shape=4, func_ids=range(1, 5)),
    ]
    return SimpleNamespace(stage_list=stages, cal_latency=lambda: 12.5, cal_cost=lambda: relu_a)
"""
PLANS = """
from types import SimpleNamespace
attr_partition = param_partition = None
hyper_params = {"func_limit": 1400}
def get_graph_metrics(path):
    graph = SimpleNamespace(get_model_size=lambda: get_info_graph(path) and 1)
    return None, graph, ["conv", "gemm"], [], [], []
def gen_stage_range(action, *rest):
    return [[0, 1, tuple(action), 0]]
def modify_stage_range(ranges, outside):
    return ranges
def get_plan(graph, layers, ranges):
    ms = 10.0 + 2 * ranges[0][2][0] + ranges[0][2][1]
    stage = SimpleNamespace(name=[0, 1], partition_shape=(2, 2), func_ids=[0])
    return SimpleNamespace(stage_list=[stage], cal_latency=lambda: ms, cal_cost=lambda: 24 - ms, cal_size=lambda: 0)
"""
SEARCH = """
from itertools import product
from parallel_util import *
def gen_opt_action_recursive(first, graph, layers, phy_stages, stage_sizes, layer_sizes, most):
    found = [[*first, *rest] for rest in product(range(4), repeat=layer_size - len(first))]
    priced = [(get_plan(graph, layers, gen_stage_range(action)), action) for action in found]
    kept = [(plan.cal_cost(), plan.cal_latency(), action) for plan, action in priced if plan.cal_latency() < most]
    cost, latency, action = min(kept, default=(None, None, None))
    return latency, cost, action
"""
FAILS = """
import atexit, sys
atexit.register(lambda: print("[07:44:16] engine.cc:54: MXNet start", file=sys.stderr))
raise ValueError("no layers")
"""
UTILS = """
import configparser
config = configparser.ConfigParser()
config.read("layer_runtime.cfg")
relu_a = config.getfloat("knix", "relu_a")
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "partition"
    folder.mkdir()
    (folder / "utils.py").write_text(UTILS)
    (folder / "layer_runtime.cfg").write_text("[lambda]\nrelu_a = 2\n[knix]\nrelu_a = 1\n")
    (folder / "layer_graph.py").write_text(GRAPH)
    (folder / "parallel_util.py").write_text("")
    (folder / "policy_dp.py").write_text(DYNAMIC_PROGRAMME)
    return tmp_path


def test_a_program_plans_in_its_own_process_with_the_coefficients_of_lambda(checkout):
    (plan,) = run_program(chain(), checkout, [FASTEST], 60)
    assert (plan.layers, plan.ms, plan.cost) == (2, 12.5, 2.0)
    first, second = (stage.group() for stage in plan.stages)
    assert (first.start, first.stop, str(first.grid), first.here) == (0, 1, "1x2", True)
    assert (second.start, second.stop, str(second.grid), second.here) == (1, 2, "col4", False)


@pytest.mark.parametrize(
    ("program", "limit_s", "fault"),
    [
        (FAILS, 60, r"ended with 1: ValueError: no layers"),
        ("import threading; threading.Event().wait()", 2, "no plan within 2 s: give --seconds"),
    ],
)
def test_a_program_that_fails_or_takes_too_long_is_reported(checkout, program, limit_s, fault):
    (checkout / "partition" / "policy_dp.py").write_text(program)
    with pytest.raises(SerferError, match=fault):
        run_program(chain(), checkout, [FASTEST], limit_s)


def test_a_directory_without_a_planner_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no policy_dp.py in partitioning/partition \(MPHB\) or partition \(Gillis\)"):
        program_of(tmp_path)


@pytest.mark.parametrize(("layers", "stop"), [(2, 1), (3, 3), (3, 2)])
def test_a_plan_for_other_layers_than_the_network_has_is_refused(layers, stop):
    """The network has two."""
    plan = TheirPlan(layers, 1.0, 1.0, (Stage(0, stop, 1, 1, columns=False, here=True),))
    with pytest.raises(InputError, match=f"a plan of {layers} layers, up to {stop}, for 2 layers"):
        plan.groups(PublishedCosts(chain(), GILLIS))


def test_what_is_cheaper_than_all_of_ours_is_a_loss():
    cheap, dear = Price(10, 1e-6), Price(9, 2e-6)
    assert Pair(10, cheap, dear).loses
    assert Pair(10, cheap, None).loses
    assert not any(Pair(10, *pair).loses for pair in [(dear, cheap), (cheap, cheap), (None, None)])
    row = Comparison("net", "Gillis", "0 to 3: here", Pair(10, cheap, dear), (Pair(600, None, dear),))
    text = results(Compared([row]), Compared(), [0.6]).text()
    assert "-100.0%" in text
    assert "under their cost model ours is dearer in 1 of 1 comparisons" in text


def test_seeds_without_a_plan_are_dearer_than_all_others():
    cheap, dear = Price(10, 1e-6), Price(9, 4e-6)
    row = SloAware("net", 0.6, "learnt", (dear, None, cheap, None, None), Price(8, 0.5e-6))
    assert (row.best, row.median) == (cheap, None)
    assert row.cells == ["net", "0.6", "learnt", "2 of 5", "10", "1.00", "none", "8", "0.50", "50.0%", "-"]
    assert not any(pair.loses for pair in row.pairs)
    row = SloAware("net", 0.6, "learnt", (cheap, dear), Price(8, 2e-6))
    text = results(Compared([], [row]), Compared(), [0.6]).text()
    assert "under their cost model ours is dearer in 1 of 2 comparisons" in text


def test_the_cheapest_of_the_choices_for_the_last_layers_is_the_cheapest_within_the_time(checkout):
    """Their search in a process of its own, with a stand-in for MXNet: 4 choices for each layer, here of two."""
    stand_ins = {"mxnet/__init__.py": "", "mxnet/ndarray.py": "", "parallel_util.py": PLANS, "policy_bf.py": SEARCH}
    (checkout / "partition" / "mxnet").mkdir()
    for name, text in stand_ins.items():
        (checkout / "partition" / name).write_text(text)
    asked = [Question("brute force", 0.0125), Question("brute force", 0.001)]
    plan, none = run_program(chain(), checkout, asked, 60)
    assert none is None
    assert (plan.ms, plan.cost) == (12.0, 12.0)
    assert [(stage.start, stage.stop, stage.rows, stage.cols, stage.here) for stage in plan.stages] == [
        (0, 2, 1, 1, True)
    ]


def test_a_layer_that_may_be_spread_over_functions_ends_with_a_dropout_in_their_form():
    """Both programs tell by a layer's last operator whether it may be divided by columns."""
    net = Net(3, 8, 8)
    x = net.op("Relu", net.linear(net.flat("x"), 192, 64))
    nodes = in_their_form(from_onnx(net.model(net.linear(x, 64, 10)), 8, 8)).graph.node
    assert [node.op_type for node in nodes] == ["Flatten", "Gemm", "Relu", "Dropout", "Gemm"]
    assert nodes[-1].input[0] == nodes[-2].output[0]


def test_all_that_the_tables_compare_is_recorded_and_reads_back(tmp_path):
    answers = recorded()
    known = {(answer.program, answer.network, answer.question) for answer in answers}
    graphs = dict.fromkeys(NETWORKS)
    used = list(answers_of(graphs, {}, None, 1, lambda _: None))
    assert known == {(answer.program, answer.network, answer.question) for answer in used}
    assert {(program, name, FASTEST) for program in ("Gillis", "MPHB") for name in NETWORKS} <= known
    keep(answers, tmp_path / "plans.json")
    assert (tmp_path / "plans.json").read_text() == files(peers).joinpath("recorded_plans.json").read_text()


def test_a_template_by_hand():
    """Two stages with 1 vCPU: a worker's curve, 190 ms a stage and 8 ms, and prices of Alibaba."""
    first, second = (
        (12710.121830643531, 5.363073327414448, 519.4987366332335),
        (63649.20798780844, 7.315140391903497, 444.8752437448646),
    )
    slowest = [
        scale * math.exp(-rate) + rest
        for scale, rate, rest in (first, (408284.4615246758, 10.121801042553008, 463.5016752183184), second)
    ]
    ms = slowest[0] + max(slowest[1:]) + 2 * 190 + 8
    found = TEMPLATES["wrn50-4"].price((1.0, 1.0))
    assert found.ms == pytest.approx(ms)
    assert found.usd == pytest.approx(6.531727128892978e-05)  # what MPHB's own program says of it


@pytest.mark.parametrize(("name", "most"), [("wrn50-4", 1500), ("wrn50-5", 3300)])
def test_vcpus_of_a_template_are_the_cheapest_of_all(name, most):
    template = TEMPLATES[name]
    choices = product(*(np.arange(0.75, 1.31, 0.05) for _ in template.stages))
    found = [template.price(vcpus) for vcpus in choices]
    least = min(price.usd for price in found if price.ms <= most)
    assert template.best(most).usd <= least * (1 + 1e-12)
    assert template.best(most).ms <= most
    assert template.best(600) is None


@pytest.mark.weekly
def test_no_plan_of_theirs_for_vgg11_is_cheaper_than_ours_under_either_model():
    rows = running.rows("study", "planner", "peers", "--model", "vgg11")
    fastest, slo_aware = ([row for row in rows if ("slo_s" in row) is aware] for aware in (False, True))
    models = "theirs", "ours"
    assert {(row["model"], row["program"]) for row in fastest} == set(product(models, ("Gillis", "MPHB")))
    assert {(row["model"], row["slo_s"]) for row in slo_aware} == set(product(models, (0.5, 0.6, 0.8)))
    pairs = [(pair["theirs"], pair["ours"]) for row in fastest for pair in (row["as_theirs"], *row["at"]) if pair]
    pairs += [(theirs, row["ours"]) for row in slo_aware for theirs in row["theirs"]]
    compared = [(theirs, ours) for theirs, ours in pairs if theirs]
    assert len(compared) > len(rows)
    assert all(ours["usd"] <= theirs["usd"] * (1 + 1e-9) for theirs, ours in compared)
