"""One plan for images of any size: their maps are the network's on the whole image, or the size is refused by name.

The oracle is ONNX Runtime (torch, of modules) on the whole image. A random case is repeated by
`TEST_SEED=SEED .venv/bin/python -m pytest tests/splitter/windows/test_any_size.py -m weekly`.
"""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import InputError, ModelError, UsageError, WrongAnswerError
from serfer.core.geometry import Span
from serfer.core.passes import window_statistics
from serfer.core.plan import dump_plan, parse_plan
from serfer.plan_directory import load_plan
from serfer.splitter.windows.build import crossing
from serfer.splitter.windows.map_plan import WindowTile
from tests.exports import run_module
from tests.splitter.models import saved
from tests.splitter.windows.random_maps import draw
from tests.splitter.windows.test_map_plan import NETWORKS, Unet, check_refused, image
from tests.splitter.windows.test_random_maps import FIXED_SEED, by_windows, check_cases, compared, seed, session
from tests.splitter.windows.test_sizes import network, scaled

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
FEW, WEEKLY, LANES = (5, 15, 24, 33, 44), 300, 3
"""Of the fixed seed: another way at small sizes, residues that only large images take, factors that are rounded."""
SIZES = 3


coarse = NETWORKS["a coarse map"]
"""Of stride 4; its every residue has a map."""


def assert_maps(plan, run, *sizes):
    for size in sizes:
        assert not compared(by_windows(plan, image(*size)), run(image(*size))), size


def oracle(file):
    run = session(file)
    return lambda batch: run.run(None, {run.get_inputs()[0].name: batch})[0]


@pytest.fixture(scope="module")
def coarse_plan(exported, tmp_path_factory):
    place = tmp_path_factory.mktemp("any") / "plan"
    serfer.map_plan(exported(coarse)[1], "any", place, window=32)
    return place


def test_one_plan_is_for_all_sizes_that_the_network_takes(exported, coarse_plan):
    sizes = [(211, 307), (212, 640), (213, 309), (322, 318)]  # all residues of the stride
    assert_maps(coarse_plan, oracle(exported(coarse)[1]), *sizes)
    plan = load_plan(coarse_plan)
    assert parse_plan(dump_plan(plan)).windows == plan.windows
    assert str(plan.windows.rules) in plan.why


def test_sizes_of_a_multiple_have_fewer_kinds_of_windows(exported, coarse_plan, tmp_path, monkeypatch):
    file = exported(coarse)[1]
    plan = serfer.map_plan(file, "any,multiple=2", tmp_path / "plan", window=32)
    assert len(plan.stages[0].tiles) < len(load_plan(coarse_plan).stages[0].tiles) / 2
    assert_maps(tmp_path / "plan", oracle(file), (210, 312))
    with pytest.raises(InputError, match="that are multiples of 2: crop it to 210 x 312"):
        plan.windows.of(211, 312)
    monkeypatch.setattr("serfer.splitter.windows.any_size.MOST_TILES", 20)
    with pytest.raises(UsageError, match=r"of 36 kinds, .* at most 20: .* --size any,multiple=2"):
        serfer.map_plan(file, "any", tmp_path / "plan", window=32)
    for sizes in ("any,multiple=0", "anything", "any,multiple=5000", "any,multiple=2,multiple=2"):
        with pytest.raises(UsageError, match="write any, or any,multiple=8"):
            serfer.map_plan("net.onnx", sizes, tmp_path / "plan")


def test_a_network_of_multiples_has_a_plan_for_these_and_refuses_others(exported, tmp_path):
    file = exported(Unet)[1]
    plan = serfer.map_plan(file, "any", tmp_path / "plan", window=64)
    assert_maps(tmp_path / "plan", oracle(file), (64, 72), (128, 300), (404, 196))
    with pytest.raises(
        InputError, match=r"of 64 pixels or more that are multiples of 4 .*: crop it to 200 x 300 pixels"
    ):
        plan.windows.of(201, 302)
    with pytest.raises(InputError, match="make a plan with --size 40x400"):
        plan.windows.of(40, 400)


def test_windows_of_each_row_and_each_column_are_compared_with_the_network(coarse_plan):
    windows = load_plan(coarse_plan).windows.of(1603, 1622)
    places = {divmod(number, len(windows.cols.windows)) for number in crossing(windows)}
    assert {row for row, _ in places} == {*range(len(windows.rows.windows))}
    assert {col for _, col in places} == {*range(len(windows.cols.windows))}
    assert len(places) < len(windows) / 2


def test_a_window_that_differs_from_the_network_is_found(exported, tmp_path, monkeypatch):
    write = WindowTile.write

    def broken(tile):
        graph = write(tile)
        first = not tile.written[0].cols.start
        return replace(graph, weights={name: value * (1.5 if first else 1) for name, value in graph.weights.items()})

    monkeypatch.setattr(WindowTile, "write", broken)
    with pytest.raises(WrongAnswerError, match="differ from the network on the whole image"):
        serfer.map_plan(exported(Unet)[1], "any", tmp_path / "plan", window=64)
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: {"ends": (replace(rows.ends[0], least=4 + rows.ends[0].residue),)},
        # more windows than an axis may have
        lambda rows: {"ends": (replace(rows.ends[0], least=rows.ends[0].residue + rows.unit * 10**15),)},
        lambda rows: {"middle": replace(rows.middle, written=Span(0, 0))},
        lambda _: {"ends": ()},
        lambda rows: {"ends": (replace(rows.ends[0], rest=50),)},
        lambda rows: {"ends": rows.ends[:1] * 2},
        lambda rows: {"ends": (replace(rows.ends[0], windows=()),)},
        lambda rows: {"first": (replace(rows.first[0], keeps=(rows.first[0].written,)), *rows.first[1:])},
        lambda _: {"unit": 0},
        None,
    ],
    ids=range(10),
)
def test_rules_that_no_splitter_writes_are_refused(change, coarse_plan):
    plan = load_plan(coarse_plan)
    side, *others = plan.windows.rules.sides
    sides = (replace(side, rows=replace(side.rows, **change(side.rows))), *others) if change else ()
    check_refused(plan, replace(plan.windows, rules=replace(plan.windows.rules, sides=sides)))


@pytest.mark.parametrize("how", ["height", "larger side", "large weights"])
def test_a_network_whose_constants_depend_on_the_size_is_refused_by_its_operator(how, tmp_path):
    file = saved(tmp_path, scaled(how).model())
    operator = r"'Conv_\d+_0' \(Conv\)" if how == "large weights" else r"'Mul_\d+_0' \(Mul\)"
    with pytest.raises(ModelError, match=f"{operator}.*depends on the image's size: give the sizes of your images"):
        serfer.map_plan(file, "any", tmp_path / "plan", window=64)
    assert not (tmp_path / "plan").exists()


def test_a_network_that_pads_to_a_multiple_has_a_plan_for_multiples(tmp_path):
    net = network()
    more = [net.op("Mod", net.op("Neg", net.side(axis)), [8]) for axis in (2, 3)]
    net.then("Pad", net.op("Concat", [0, 0, 0, 0, 0, 0], *more, axis=0))
    net.conv((3, 3), pads=[1, 1, 1, 1])
    file = saved(tmp_path, net.model())
    with pytest.raises(ModelError, match="depends on the image's size"):
        serfer.map_plan(file, "any", tmp_path / "plan", window=64)
    serfer.map_plan(file, "any,multiple=8", tmp_path / "plan", window=64)
    assert_maps(tmp_path / "plan", oracle(file), (136, 200))


def test_a_module_whose_python_looks_at_the_size_is_refused_by_its_condition(tmp_path):
    class Filtering(nn.Conv2d):
        def forward(self, x):
            return super().forward(functional.avg_pool2d(x, 3, 1, 1) if x.shape[2] % 1_000_003 == 5 else x)

    with pytest.raises(
        ModelError, match=r"the network looks at the image's size: .* not meet .*1000003. != 5; .*--size HEIGHTxWIDTH"
    ):
        serfer.map_plan(Filtering(3, 2, 3, padding=1).eval(), "any", tmp_path / "plan", window=64)


def sizes_by_rules(case, directory):
    """Draw sizes of images that a plan for any size takes."""
    rng, rules = random.Random(case.number), load_plan(directory).windows.rules.sides[-1]  # noqa: S311 - no secret
    for _ in range(SIZES):
        drawn = [(rule, rng.choice(rule.ends)) for rule in (rules.rows, rules.cols)]
        yield tuple(end.least + rule.unit * rng.choice([0, 1, 2, 5, 120 // rule.unit]) for rule, end in drawn)


def check(numbers, of_seed, least):
    """Check the cases of these numbers, of which at least so many have a plan."""
    cases = [replace(draw(of_seed, number), sizes="any", window=48) for number in numbers]
    ends, _ = check_cases(cases, sizes_by_rules)
    assert ends["exact"] >= least


def test_a_few_random_networks_have_maps_of_any_size():
    check(FEW, FIXED_SEED, len(FEW) - 1)


@pytest.mark.weekly
@pytest.mark.parametrize("lane", range(LANES))
def test_random_networks_have_maps_of_any_size_or_are_refused(lane):
    numbers = range(lane, WEEKLY, LANES)
    check(numbers, seed(), len(numbers) // 10)


class Gated(nn.Module):
    """Of stride 2, with a norm over the whole image, and gates that follow from its mean, maximum, minimum and sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.InstanceNorm2d(4, affine=True)
        self.gate, self.last = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x):
        x = functional.gelu(self.norm(self.first(x)))
        least = -functional.adaptive_max_pool2d(-x, 1)
        pooled = x.mean((2, 3), keepdim=True), functional.adaptive_max_pool2d(x, 1), least, x.sum((2, 3), keepdim=True)
        return self.last(x * torch.sigmoid(self.gate(torch.cat([*pooled[:3], pooled[3] / 1e4], 1))))


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A network that looks at the whole image in two passes, and its plan."""
    place, net = tmp_path_factory.mktemp("gated") / "plan", Gated().eval()
    serfer.map_plan(net, "any", place, window=16, statistics="exact")
    return place, net


def test_passes_add_up_the_statistics_of_images_of_any_size(gated):
    plan, net = gated
    rng = np.random.default_rng(0)
    sizes = [(39, 39), (40, 103), (104, 105), *rng.integers(40, 300, (3, 2)).tolist()]
    assert_maps(plan, partial(run_module, net), *map(tuple, sizes))


def test_each_unit_of_an_image_of_any_size_is_owned_by_one_window_of_a_pass(gated):
    passes = load_plan(gated[0]).windows.passes

    @given(st.integers(39, 1_000), st.integers(39, 1_000))
    def check(height, width):
        for one in passes:
            windows = one.of(height, width)
            owned = np.zeros((windows.height, windows.width), int)
            for window in windows:
                owned[window.written.slices] += 1
                rows, cols = np.frombuffer(window_statistics(bytes(16), window), np.float32)[-2:]
                assert (window.made.rows.start + rows, window.made.cols.start + cols) == (
                    window.written.rows.start,
                    window.written.cols.start,
                )
            assert (owned == 1).all()

    check()


def test_a_plan_of_passes_refuses_an_image_that_is_too_small(gated):
    with pytest.raises(
        InputError, match="takes heights and widths of 39 pixels or more: make a plan with --size 30x40"
    ):
        load_plan(gated[0]).windows.of(30, 40)


def _longer(one):
    side = one.rules.sides[-1]
    end = replace(side.rows.ends[0], least=side.rows.ends[0].least + side.rows.unit)
    side = replace(side, rows=replace(side.rows, ends=(end, *side.rows.ends[1:])))
    return replace(one, rules=replace(one.rules, sides=(*one.rules.sides[:-1], side)))


def _without_sides(one):
    return replace(one, rules=replace(one.rules, sides=()))


@pytest.mark.parametrize("change", [lambda one: replace(one, rules=None), _longer, _without_sides])
def test_a_pass_over_other_sizes_than_the_map_is_refused(change, gated):
    plan = load_plan(gated[0])
    first, *others = plan.windows.passes
    check_refused(plan, replace(plan.windows, passes=(change(first), *others)))
