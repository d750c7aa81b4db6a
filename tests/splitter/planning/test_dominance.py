"""The chosen plan is never both dearer and slower than another one that it names, unless an option ruled that one out.

Whatever the place and the precision of weights. Plans are chosen here and not written; a plan names its alternatives,
and others in its paragraph, which then has the option.
"""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.plan import WEIGHT_PLACES, PackageLimit
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.package_fit import fit
from serfer.splitter.planning.split_options import OBJECTIVES, Budget, SplitOptions, memory_sizes
from tests.splitter.models import Net
from tests.splitter.planning.test_weight_places import NETWORKS, ROOM

AWS = shipped_aws()
PRICE = re.compile(r"([\d.e+]+) ms and \$([\d.]+) a million queries")
ROUNDED = 0.006
"""Dollars a million are given with two decimals, milliseconds with four digits."""
WAYS = [
    *({"weights": place} for place in (*WEIGHT_PLACES, "auto")),
    *({"weights": place, "max_loss": 0.05} for place in (*WEIGHT_PLACES, "auto")),
    *({"precision": precision} for precision in ("fp32", "fp16")),
    *({"objective": objective} for objective in OBJECTIVES if objective not in ("balanced", "work")),
]
FEWER_WAYS = [way for way in WAYS if way.get("weights") not in ("image", "fetched")]
RULED_OUT = ("weights=zip rules it out", "with fp16 allowed (max_loss", "because of what was given")


def checked(graph, budget, **options):
    """Choose a plan, and check it against every other one that it names; return what it lost to, and its paragraph."""
    options = SplitOptions(**options)
    decision = fit(graph, options, budget, None, lambda _: None)
    (chosen,) = [each for each in decision.alternatives if each.chosen]
    text = decision.why(chosen, None)
    listed = [(each.ms, 1e6 * each.usd) for each in decision.alternatives]
    told = [(float(ms), float(usd)) for ms, usd in PRICE.findall(text)]
    assert any(ms == pytest.approx(chosen.ms, rel=1e-3) for ms, _ in told)
    better = [
        (ms, usd)
        for ms, usd in (*listed, *told)
        if ms < chosen.ms * (1 - 1e-3) and usd < 1e6 * chosen.usd * (1 - 1e-3) - ROUNDED
    ]
    assert chosen.fits
    assert bool(better) <= any(reason in text for reason in RULED_OUT), (chosen, better, text)
    return better, text


def limited(room=ROOM):
    return Budget(PackageLimit(DEPENDENCY_ALLOWANCE + room, DEPENDENCY_ALLOWANCE), AWS, memory_sizes(AWS.functions))


SMALL = [*NETWORKS, "wide", "deep"]
CASES = [
    # at each commit every network and every way, a fifth of the pairs
    pytest.param(name, way, marks=[] if (row + column) % len(SMALL) == 0 else pytest.mark.weekly, id=f"{name}-{way}")
    for row, name in enumerate(SMALL)
    for column, way in enumerate(WAYS)
]


@pytest.fixture(scope="module")
def small(request):
    if request.param in NETWORKS:
        net, output = NETWORKS[request.param]()
        return net.graph(output)
    net, x = Net(3, 24, 24), "x"
    widths = (3, 48, 48) if request.param == "wide" else (3, *[32] * 6)
    for before, after in pairwise(widths):
        x = net.op("Relu", net.conv(x, before, after, 3))
    output = net.linear(net.flat(net.op("GlobalAveragePool", x)), widths[-1], 10)
    return net.graph(output)


@pytest.mark.parametrize(("small", "way"), CASES, indirect=["small"])
def test_no_plan_that_is_named_beats_the_chosen_one(small, way):
    """One zip holds some of these networks, none the others."""
    for room in (ROOM, 10 * ROOM):
        better, text = checked(small, limited(room), **way)
        if way.get("weights", "auto") != "zip":
            assert not better, text


@pytest.mark.parametrize("small", SMALL, indirect=True)
@pytest.mark.parametrize("given", [{"stages": 3}, {"grids": (2, 2)}, {"gang": "always"}], ids=str)
def test_a_better_plan_that_was_ruled_out_is_named_with_what_ruled_it_out(small, given):
    better, text = checked(small, limited(10 * ROOM), **given)
    assert not better or "because of what was given" in text


def test_the_check_finds_a_plan_that_loses():
    """A plan is compared with all that it names: here with one that an option ruled out."""
    net, output = NETWORKS["many_layers"]()
    better, text = checked(net.graph(output), limited(), weights="zip")
    assert better
    assert "weights=zip rules it out" in text


WAYS_OF_LARGE = ({"weights": "auto"}, {"weights": "auto", "max_loss": 0.05})


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *(
            pytest.param("alexnet", way, marks=pytest.mark.slow if way == WAYS_OF_LARGE[0] else pytest.mark.weekly)
            for way in FEWER_WAYS
        ),
        *(pytest.param(net, way, marks=pytest.mark.weekly) for net in ("vgg16", "resnet152") for way in WAYS_OF_LARGE),
    ],
    ids=str,
)
def test_no_plan_that_is_named_beats_the_chosen_one_of_a_large_network(zoo, name, way):
    limit = PackageLimit(AWS.functions.package_limit, DEPENDENCY_ALLOWANCE)
    budget = replace(limited(), limit=limit)
    better, text = checked(zoo(name)[2], budget, **way)
    if way.get("weights", "auto") != "zip":
        assert not better, text
