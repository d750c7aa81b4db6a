"""One plan for images of any size: their maps are the network's on the whole image, or the size is refused by name.

The oracle is ONNX Runtime (torch, of modules) on the whole image. A random case is repeated by
`TEST_SEED=SEED .venv/bin/python -m pytest tests/splitter/windows/test_any_size.py -m weekly`.
"""

import random
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import InputError, ModelError, PlanError, SerferError, UsageError, WrongAnswerError
from serfer.core.geometry import Span
from serfer.core.plan import dump_plan, parse_plan, sealed
from serfer.plan_directory import load_plan
from serfer.splitter.windows.build import crossing
from serfer.splitter.windows.map_plan import WindowTile
from tests.splitter.windows.random_maps import draw
from tests.splitter.windows.test_map_plan import Unet, layers
from tests.splitter.windows.test_random_maps import (
    FIXED_SEED,
    NOT_A_REASON,
    by_windows,
    compared,
    network_of,
    planned,
    seed,
    session,
)
from tests.splitter.windows.test_sizes import network, scaled

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
FEW, WEEKLY, LANES = (5, 15, 24, 33, 44), 300, 3
"""Of the fixed seed: another way at small sizes, residues that only large images take, factors that are rounded."""
SIZES = 3


def coarse():
    """Return a network of stride 4 whose every residue has a map."""
    return layers(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 5, 3, stride=2, padding=1))


def image(*size, channels=3):
    return np.random.default_rng(sum(size)).standard_normal((1, channels, *size), dtype=np.float32)


def assert_maps(plan, file, *sizes):
    oracle = session(file)
    for size in sizes:
        [expected] = oracle.run(None, {oracle.get_inputs()[0].name: image(*size)})
        assert not compared(by_windows(plan, image(*size)), expected), size


@pytest.fixture(scope="module")
def coarse_plan(exported, tmp_path_factory):
    place = tmp_path_factory.mktemp("any") / "plan"
    serfer.map_plan(exported(coarse)[1], "any", place, window=32)
    return place


def test_one_plan_is_for_all_sizes_that_the_network_takes(exported, coarse_plan):
    sizes = [(211, 307), (212, 640), (213, 309), (322, 318)]  # all residues of the stride
    assert_maps(coarse_plan, exported(coarse)[1], *sizes)


def test_a_network_of_multiples_has_a_plan_for_these_and_refuses_others(exported, tmp_path):
    file = exported(Unet)[1]
    plan = serfer.map_plan(file, "any", tmp_path / "plan", window=64)
    assert_maps(tmp_path / "plan", file, (64, 72), (128, 300), (404, 196))
    with pytest.raises(
        InputError, match=r"of 64 pixels or more that are multiples of 4 .*: crop it to 200 x 300 pixels"
    ):
        plan.windows.of(201, 302)
    with pytest.raises(InputError, match="make a plan with --size 40x400"):
        plan.windows.of(40, 400)


def test_sizes_of_a_multiple_have_fewer_kinds_of_windows(exported, coarse_plan, tmp_path):
    plan = serfer.map_plan(exported(coarse)[1], "any,multiple=2", tmp_path / "plan", window=32)
    assert len(plan.stages[0].tiles) < len(load_plan(coarse_plan).stages[0].tiles) / 2
    assert_maps(tmp_path / "plan", exported(coarse)[1], (210, 312))
    with pytest.raises(InputError, match="that are multiples of 2: crop it to 210 x 312"):
        plan.windows.of(211, 312)


def test_a_plan_for_any_size_is_read_again_and_says_what_it_takes(coarse_plan):
    plan = load_plan(coarse_plan)
    assert parse_plan(dump_plan(plan)).windows == plan.windows
    assert str(plan.windows.rules) in plan.why


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


def _least(rules):
    end = rules.sides[0].rows.ends[0]
    return _with_ends(rules, replace(end, least=4 + end.residue))


def _far(rules):
    """More windows than an axis may have, by the length of the shortest image."""
    end, unit = rules.sides[0].rows.ends[0], rules.sides[0].rows.unit
    return _with_ends(rules, replace(end, least=end.residue + unit * 10**15))


def _empty_middle(rules):
    side = rules.sides[0]
    middle = replace(side.rows.middle, written=Span(0, 0))
    return replace(rules, sides=(replace(side, rows=replace(side.rows, middle=middle)), *rules.sides[1:]))


def _keeping(rules):
    side = rules.sides[0]
    first, *others = side.rows.first
    rows = replace(side.rows, first=(replace(first, keeps=(first.written,)), *others))
    return replace(rules, sides=(replace(side, rows=rows), *rules.sides[1:]))


def _with_ends(rules, *ends):
    side = rules.sides[0]
    return replace(rules, sides=(replace(side, rows=replace(side.rows, ends=ends)), *rules.sides[1:]))


@pytest.mark.parametrize(
    "change",
    [
        _least,
        _far,
        _empty_middle,
        _with_ends,
        lambda rules: _with_ends(rules, replace(rules.sides[0].rows.ends[0], rest=50)),
        lambda rules: _with_ends(rules, *rules.sides[0].rows.ends[:1] * 2),
        lambda rules: _with_ends(rules, replace(rules.sides[0].rows.ends[0], windows=())),
        _keeping,
        lambda rules: replace(rules, sides=()),
        lambda rules: replace(rules, sides=(replace(rules.sides[0], rows=replace(rules.sides[0].rows, unit=0)),)),
    ],
)
def test_rules_that_no_splitter_writes_are_refused(change, coarse_plan):
    plan = load_plan(coarse_plan)
    windows = replace(plan.windows, rules=change(plan.windows.rules))
    with pytest.raises(PlanError, match=r"plan\.json"):
        parse_plan(dump_plan(sealed(replace(plan, windows=windows))))


@pytest.mark.parametrize("how", ["height", "larger side", "large weights"])
def test_a_network_whose_constants_depend_on_the_size_is_refused_by_its_operator(how, tmp_path):
    file = tmp_path / "net.onnx"
    file.write_bytes(scaled(how).model().SerializeToString())
    operator = r"'conv_\d+' \(Conv\)" if how == "large weights" else r"'mul_\d+' \(Mul\)"
    with pytest.raises(ModelError, match=f"{operator}.*depends on the image's size: give the sizes of your images"):
        serfer.map_plan(file, "any", tmp_path / "plan", window=64)
    assert not (tmp_path / "plan").exists()


def padded_to_a_multiple():
    """Pad rows and columns to a multiple of 8, as networks of patches do."""
    net = network()
    more = [net.op("Mod", net.op("Neg", net.side(axis)), net.ints(8)) for axis in (2, 3)]
    net.then("Pad", net.op("Concat", net.ints(0, 0, 0, 0, 0, 0), *more, axis=0))
    net.conv((3, 3), pads=[1, 1, 1, 1])
    return net


def test_a_network_that_pads_to_a_multiple_has_a_plan_for_multiples(tmp_path):
    file = tmp_path / "net.onnx"
    file.write_bytes(padded_to_a_multiple().model().SerializeToString())
    with pytest.raises(ModelError, match="depends on the image's size"):
        serfer.map_plan(file, "any", tmp_path / "plan", window=64)
    serfer.map_plan(file, "any,multiple=8", tmp_path / "plan", window=64)
    assert_maps(tmp_path / "plan", file, (136, 200))


def test_a_module_whose_python_looks_at_the_size_is_refused_by_its_condition(tmp_path):
    class Filtering(nn.Conv2d):
        def forward(self, x):
            return super().forward(functional.avg_pool2d(x, 3, 1, 1) if x.shape[2] > 400 else x)

    with pytest.raises(ModelError, match=r"Python looks at the image's size: \d+ x \d+ pixels do not meet .*height"):
        serfer.map_plan(Filtering(3, 2, 3, padding=1).eval(), "any", tmp_path / "plan", window=64)


def test_a_module_has_a_plan_for_any_size(tmp_path):
    torch.manual_seed(0)
    net = layers(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Conv2d(4, 2, 5))
    serfer.map_plan(net, "any", tmp_path / "plan", window=64)
    for size in ((141, 230), (309, 150)):
        with torch.inference_mode():
            expected = net(torch.from_numpy(image(*size))).numpy()
        assert not compared(by_windows(tmp_path / "plan", image(*size)), expected)


@pytest.mark.parametrize("sizes", ["any,multiple=0", "anything", "any,multiple=5000", "any,multiple=2,multiple=2"])
def test_text_that_is_not_sizes_is_refused(sizes, tmp_path):
    with pytest.raises(UsageError, match="write any, or any,multiple=8"):
        serfer.map_plan("net.onnx", sizes, tmp_path / "plan")


def test_too_many_kinds_of_windows_are_refused_with_the_multiple_that_has_fewer(exported, tmp_path, monkeypatch):
    monkeypatch.setattr("serfer.splitter.windows.any_size.MOST_TILES", 20)
    with pytest.raises(UsageError, match=r"of 36 kinds, .* at most 20: .* --size any,multiple=2"):
        serfer.map_plan(exported(coarse)[1], "any", tmp_path / "plan", window=32)


def outcome(case):
    """Return "exact", "refused" or "infinite", and what is wrong, if anything."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (model, oracle), directory = network_of(case, place), Path(place, "plan")
        try:
            planned(replace(case, sizes="any", window=48), model, directory)
        except SerferError as error:
            return "refused", f"a reason that is none: {error}" * bool(NOT_A_REASON.search(str(error)))
        rng, rules = random.Random(case.number), load_plan(directory).windows.rules.sides[-1]  # noqa: S311 - no secret
        for _ in range(SIZES):
            drawn = [(rule, rng.choice(rule.ends)) for rule in (rules.rows, rules.cols)]
            size = tuple(end.least + rule.unit * rng.choice([0, 1, 2, 5, 120 // rule.unit]) for rule, end in drawn)
            expected = oracle(case.image(*size))
            if not np.isfinite(expected).all():
                return "infinite", ""
            expected = expected.argmax(1) if case.reduce else expected
            if wrong := compared(by_windows(directory, case.image(*size)), expected):
                return "exact", f"{size}: {wrong}"
        return "exact", ""


def check(numbers, of_seed, least):
    """Check the cases of these numbers, of which at least so many have a plan."""
    ends, wrong = Counter(), []
    for number in numbers:
        case = draw(of_seed, number)
        end, trouble = outcome(case)
        ends[end] += 1
        if trouble:
            wrong.append(f"{case}: {trouble}")
    print(dict(ends), f"seed {of_seed}")  # noqa: T201 - `make weekly` shows them
    assert not wrong, "\n".join(wrong)
    assert ends["exact"] >= least


def test_a_few_random_networks_have_maps_of_any_size():
    check(FEW, FIXED_SEED, len(FEW) - 1)


@pytest.mark.weekly
@pytest.mark.parametrize("lane", range(LANES))
def test_random_networks_have_maps_of_any_size_or_are_refused(lane):
    numbers = range(lane, WEEKLY, LANES)
    check(numbers, seed(), len(numbers) // 10)
