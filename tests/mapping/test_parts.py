"""Maps of random networks beside the network on parts of the image: no right one is refused, and faults are found.

Networks look at the image's size in many ways, and resize by fractions. Windows are computed in this process; what
compares them is what `serfer map` calls.
"""

import os
import random
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from onnx import TensorProto, helper

import serfer
from serfer.mapping.comparison import compare, whole_of
from serfer.mapping.results import ResultFile
from serfer.plan_directory import load_plan
from tests.splitter.models import saved
from tests.splitter.windows.random_maps import Case, Drawn
from tests.splitter.windows.test_random_maps import answers_of, compared, maps_and_statistics, planned

FEW, DAILY, WEEKLY = 8, 150, 2000
FRACTIONS = (0.7, 1.3, 0.35, 0.9, 1.4, 0.6)


class Sized(Drawn):
    """A drawn network, with more steps that look at the image's size."""

    def condition(self):
        """Return whether an image's height, or its pixels, are more than a number: a part's are fewer."""
        height, width = (self.side(axis, "x") for axis in (2, 3))
        value, limit = self.rng.choice([(height, 280), (self.op("Mul", height, width), 90_000)])
        return self.op("Squeeze", self.op("Greater", value, [limit]))

    def step_resize_by_a_fraction(self):
        scale = self.rng.choice(FRACTIONS)
        self.then("Resize", "", np.float32([1, 1, scale, scale]), **self._mode())

    def step_chosen_by_size(self):
        self.name = self.op("Where", self.condition(), self.op("Relu", self.name), self.op("Neg", self.name))

    def step_branched_by_size(self):
        first = self.name

        def body(kind):
            node = helper.make_node(kind, [first], [f"{kind}_{len(self.nodes)}"])
            made = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
            return helper.make_graph([node], kind, [], [made])

        self.name = self.op("If", self.condition(), then_branch=body("Relu"), else_branch=body("Sigmoid"))

    def step_multiplied_by_a_condition(self):
        self.then("Mul", self.op("Add", self.op("Cast", self.condition(), to=TensorProto.FLOAT), 0.5))

    def shift(self):
        """Return a number, 0 to 4, that is another one for an image's height than for a part's."""
        return self.op("Mod", self.op("Div", self.side(2, "x"), [self.rng.choice([64, 100])]), [5])

    def step_cut_by_size(self):
        axis, start = self.rng.choice([2, 3]), self.shift()
        stop = self.op("Add", start, self.op("Sub", self.side(axis), [4]))
        self.then("Slice", start, stop, [axis])

    def step_padded_by_size(self):
        before = self.shift()
        behind = self.op("Sub", [4], before)
        amounts = self.op("Concat", [0, 0], before, before, [0, 0], behind, behind, axis=0)
        self.then("Pad", amounts, mode=self.rng.choice(["reflect", "constant"]))

    def step_channel_by_size(self):
        number = self.op("Mod", self.op("Div", self.side(2, "x"), [100]), [self.channels])
        self.then("Gather", number, axis=1)
        self.channels = 1


def drawn(seed, number):
    rng = random.Random(f"parts {seed} {number}")  # noqa: S311 - no secret
    net = Sized(rng)
    net.grow(5)
    for step in rng.sample([name for name in vars(Sized) if name.startswith("step_")], 2):
        getattr(net, step)()
        net.conv((3, 3), pads=[rng.randint(0, 1)] * 4)
    sizes = [
        tuple(rng.choice([320, 400, 480]) + rng.choice([0, 0, 0, 7]) for _ in "hw")
        for _ in range(rng.choice([1, 1, 2]))
    ]
    reduce = rng.choice([None] * 4 + ["argmax"]) if net.channels > 1 else None
    return Case(seed, number, net.model(), net.first, sizes, rng.choice([32, 64, 96]), reduce)


@dataclass
class Input:
    bytes_as_they_are: bool = False

    def batch(self, pixels, _hidden):
        return pixels[None]


def beside_the_network(plan, directory, image, maps, statistics):
    windows = plan.windows.of(*image.shape[2:])
    stacks = [values.reshape(-1, *values.shape[-2:]) for values in maps]
    forms = [SimpleNamespace(outputs=[tensor.name], no_data=None) for tensor in plan.output_tensors]
    parts = [
        SimpleNamespace(area=partial(area, stack), rects=[window.written for window in windows.of_output(number)])
        for number, stack in enumerate(stacks)
    ]
    job = SimpleNamespace(
        plan=plan,
        windows=windows,
        files=[Mock(spec=ResultFile, form=form) for form in forms],
        source=SimpleNamespace(read_masked=lambda rect: (image[0][:, *rect.slices], None)),
        gaps=SimpleNamespace(possible=False),
        input=Input(),
    )
    return compare(job, parts, plan.windows, lambda: whole_of(plan, directory), statistics)


def area(stack, place, first, last):
    return stack[first:last, *place.slices]


def with_fault(plan, image, values, fault):
    """Return a map of whose windows each has the same fault."""
    made = values.copy()
    for window in plan.windows.of(*image.shape[2:]):
        part = made[..., *window.written.slices]
        if fault == "a row further":
            part[:] = np.roll(part, 1, axis=-2)
        elif fault == "a border":
            part[..., -1:] = part[..., :1]
        else:
            part[:] = part[..., ::-1]
    return made


FAULTS = "a row further", "a border", "mirrored"


def outcome(case):
    """Return how a case ends, and what is wrong with that, if anything."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(action="ignore"):
        directory = Path(place, "plan")
        try:
            planned(case, saved(Path(place), case.model), directory)
        except serfer.WrongAnswerError as error:
            return "wrong", str(error)
        except serfer.SerferError:
            return "refused", ""
        plan, ends = load_plan(directory), set()
        for size in case.sizes:
            image = case.image(*size)
            maps, statistics = maps_and_statistics(directory, image)
            expected = answers_of(case)(image)
            if case.reduce:
                expected = [expected[0].argmax(1)]
            found = beside_the_network(plan, directory, image, maps, statistics)
            if any(map(compared, maps, expected)):
                return "wrong", f"{size}: windows are wrong"
            if found.wrong:
                return "wrong", f"{size}: a right map is refused: {found}"
            if found.skipped:
                ends.add("not compared")
                continue
            ends.add("compared")
            if missed := faults_missed(plan, directory, image, maps, statistics):
                return "wrong", f"{size}: not found: {missed}"
        return min(ends), ""


def faults_missed(plan, directory, image, maps, statistics):
    [values] = maps
    missed = []
    for fault in FAULTS:
        altered = with_fault(plan, image, values, fault)
        far = np.abs(altered.astype(np.float64) - values) > 1e-3 * np.ptp(values)
        if far.mean() > (0.005 if fault == "a border" else 0.3):
            found = beside_the_network(plan, directory, image, [altered], statistics)
            missed += [fault] * (not found.wrong)
    if statistics.size and not beside_the_network(plan, directory, image, maps, statistics + 1).wrong:
        changed, _ = maps_and_statistics(directory, image, statistics + 1)
        missed += ["statistics"] * bool(compared(changed[0], values))
    return missed


def check(cases):
    ends = Counter()
    for case in cases:
        end, trouble = outcome(case)
        assert not trouble, f"{case}: {trouble}"
        ends[end] += 1
    print(dict(ends))  # noqa: T201 - `make weekly` shows them
    assert ends["compared"] >= len(cases) // 5, ends


@pytest.mark.exact
def test_parts_of_a_few_random_networks_are_as_their_maps():
    check([drawn(1, number) for number in range(FEW)])


@pytest.mark.exact
@pytest.mark.parametrize(
    ("count", "lane"),
    [
        *(pytest.param(DAILY, lane, marks=pytest.mark.slow) for lane in range(2)),
        *(pytest.param(WEEKLY, lane, marks=pytest.mark.weekly) for lane in range(4)),
    ],
)
def test_parts_of_random_networks_are_as_their_maps(count, lane):
    check([drawn(int(os.environ["TEST_SEED"]), number) for number in range(lane, count, 4 if count == WEEKLY else 2)])
