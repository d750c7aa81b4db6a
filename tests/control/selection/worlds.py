"""Variants and states of tests."""

import random
from dataclasses import replace

from serfer.control.selection import PlaceState, States
from serfer.core.variants import Accuracy, Figure, Objectives, Place, VariantState
from tests.registry import records

INACTIVE, ACTIVE = VariantState.INACTIVE, VariantState.ACTIVE
OVERLOADED, INTERFERED = VariantState.OVERLOADED, VariantState.INTERFERED


def variant(name, usd=1e-6, latency=20.0, load=500.0, accuracy=0.75, qps=100.0, network="resnet50", **more):
    known = None if accuracy is None else Accuracy(round(accuracy * 10_000), 10_000)
    figures = {"latency_ms": latency, "load_ms": load, "peak_mb": 200.0, "qps": qps, "usd": usd}
    measured = {figure: Figure.measured(value) for figure, value in figures.items()}
    fields = {"place": Place.INSTANCE, "kind": "gpu", "accuracy": known} | measured | more
    return replace(records.variant(name, network), **fields)


def states(**places):
    """Return states from lists of (state, load) or (state, load, admitted) by variant; places are p0, p1, ..."""
    return States(
        {name: [PlaceState(f"p{at}", *place) for at, place in enumerate(some)] for name, some in places.items()}
    )


class Registry:
    """A random registry: some figures are equal, so that ties are met."""

    def __init__(self, seed):
        self.chance = random.Random(seed)  # noqa: S311 - examples, no secret
        pick, draw = self.chance.choice, self.chance.uniform
        self.variants = [
            variant(
                f"v{at}",
                usd=pick([0.0, 1e-6, 2e-6, draw(1e-7, 1e-5)]),
                latency=pick([10.0, 20.0, draw(1.5, 300.0)]),
                load=pick([0.0, 100.0, draw(10.0, 3000.0)]),
                qps=pick([1.0, 50.0, draw(1.0, 900.0)]),
                accuracy=pick([None, 0.7, 0.7, draw(0.5, 0.9), draw(0.5, 0.9)]),
                network=pick(["a", "b", "c"]),
                place=pick([Place.FUNCTIONS, Place.INSTANCE]),
            )
            for at in range(self.chance.randint(1, 12))
        ]
        kinds = pick([list(VariantState), [INACTIVE, OVERLOADED], [OVERLOADED, INTERFERED], [ACTIVE], [INACTIVE]])
        self.places = {
            each.name: [self.place(at, pick(kinds)) for at in range(self.chance.randint(1, 4))]
            for each in self.variants
            if self.chance.random() < 0.85
        }

    def place(self, at, state):
        load = self.chance.choice([0.0, 0.5, self.chance.uniform(0.0, 3.0)])
        return (f"p{at}", state, load, self.chance.choice([1.0, 1.0, self.chance.uniform(0.02, 1.0)]))

    def change(self):
        if self.places:
            name = self.chance.choice(sorted(self.places))
            at = self.chance.randrange(len(self.places[name]))
            self.places[name][at] = self.place(at, self.chance.choice(list(VariantState)))

    @property
    def states(self):
        return States({name: [PlaceState(*place) for place in some] for name, some in self.places.items()})

    def asked(self):
        chance, one = self.chance, self.chance.choice(self.variants)
        latency = chance.choice([None, one.latency_ms.value, chance.uniform(1.0, 2000.0)])
        loaded = one.latency_ms.value + one.load_ms.value
        return Objectives(
            latency_ms=chance.choice([latency, loaded]),
            min_accuracy=chance.choice([None, 0.0, one.least_accuracy, chance.uniform(0.4, 0.95)]),
            max_cost_usd=chance.choice([None, one.usd.value, chance.uniform(0.0, 1e-5)]),
            variant=one.name if chance.random() < 0.1 else None,
            network=one.network if chance.random() < 0.3 else None,
        )
