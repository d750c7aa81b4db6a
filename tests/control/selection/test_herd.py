"""Eight drivers that select by states of up to two seconds ago share a load, and do not move together."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from serfer.control.selection import Catalogue, InfaasSelector, StateTracker, VariantSignals, draw_of
from serfer.core.variants import Objectives, Place
from tests.control.selection.worlds import variant

DRIVERS = 8
STEP_S = 0.05
PERIOD_S = 2.0
BATCH = 8


@dataclass
class Server:
    qps: float
    queue: float = 0.0
    served: float = 0.0
    arrived: list = field(default_factory=list)

    def step(self, arrived):
        self.arrived.append(arrived)
        self.queue += arrived
        done = min(self.queue, self.qps * STEP_S)
        self.queue -= done
        self.served += done

    def publish(self):
        share, self.served = self.served / (self.qps * PERIOD_S), 0.0
        return VariantSignals(Place.INSTANCE, 1, share=share, waiting=self.queue / BATCH)

    def windows(self, start_s):
        """Return the load that arrived in each period, as a share of capacity."""
        steps = round(PERIOD_S / STEP_S)
        first = round(start_s / STEP_S)
        sums = (sum(self.arrived[at : at + steps]) for at in range(first, len(self.arrived) - steps + 1, steps))
        return [each / (self.qps * PERIOD_S) for each in sums]


class Herd:
    """Drivers that share a load evenly; every variant is at `places` places, with its throughput at each."""

    def __init__(self, qps, *, places=1):
        self.servers = {(f"v{at}", f"p{place}"): Server(each) for at, each in enumerate(qps) for place in range(places)}
        self.catalogue = Catalogue([variant(f"v{at}", usd=(at + 1) * 1e-6, qps=each) for at, each in enumerate(qps)])
        self.trackers = [StateTracker() for _ in range(DRIVERS)]
        idle = {key: server.publish() for key, server in self.servers.items()}
        self.states = [tracker.observe(idle) for tracker in self.trackers]
        self.late = self.sent = self.queries = 0

    def run(self, load, seconds, settled_s):
        """Send load(t) queries/s; count those that a queue of a full batch or more awaits, once it is settled."""
        published, due = {}, 0.0
        steps = round(PERIOD_S / STEP_S)
        delays = [round(driver * PERIOD_S / DRIVERS / STEP_S) for driver in range(DRIVERS)]
        for step in range(round(seconds / STEP_S)):
            if step % steps == 0:
                published = {key: server.publish() for key, server in self.servers.items()}
            for driver, delay in enumerate(delays):
                if step % steps == delay:
                    self.states[driver] = self.trackers[driver].observe(published)
            arrived = dict.fromkeys(self.servers, 0)
            due += load(step * STEP_S) * STEP_S
            while due >= 1.0:
                due -= 1.0
                key = self.select()
                arrived[key] += 1
                if step * STEP_S >= settled_s:
                    self.sent += 1
                    self.late += self.servers[key].queue >= BATCH
            for key, server in self.servers.items():
                server.step(arrived[key])
        return self

    def select(self):
        self.queries += 1
        states, draw = self.states[self.queries % DRIVERS], draw_of(f"query-{self.queries}")
        chosen = InfaasSelector().get_variant(Objectives(), self.catalogue, states, draw)
        return chosen.variant, chosen.place

    @property
    def late_share(self):
        return self.late / self.sent

    def spread(self, settled_s):
        """Return the mean difference of the loads of the most and the least loaded place in a period."""
        periods = list(zip(*(server.windows(settled_s) for server in self.servers.values()), strict=True))
        return sum(max(loads) - min(loads) for loads in periods) / len(periods)

    def swings(self, settled_s):
        """Return how many times a variant went from overloaded to idle, or back, between two periods or over some."""
        loads = [server.windows(settled_s) for server in self.servers.values()]
        marks = [[load > 1.0 for load in series if load > 1.0 or load < 0.2] for series in loads]
        return sum(before != after for series in marks for before, after in pairwise(series))


LATE_SHARE = 0.1
SPREAD = 0.25
JUMP_S, SETTLED_S, END_S = 20.0, 40.0, 160.0

LOADS = [
    *(((100, 150, 400), 180), ((100, 150, 400), 400), ((100, 100, 100), 210), ((50, 1000), 400)),
    pytest.param((100,) * 6, 450, marks=pytest.mark.weekly),
]


def run(qps, rate):
    """Return drivers after a load that jumps from what the cheapest variant takes to what overloads it."""
    return Herd(qps).run(lambda now_s: 40 if now_s < JUMP_S else rate, END_S, SETTLED_S)


@pytest.mark.parametrize(("qps", "rate"), LOADS)
def test_eight_drivers_leave_an_overloaded_variant_without_overloading_or_emptying_another(qps, rate):
    herd = run(qps, rate)
    assert herd.swings(SETTLED_S) == 0
    assert herd.late_share <= LATE_SHARE


def test_the_cheapest_variant_takes_all_again_when_the_load_falls():
    herd = Herd((100, 100, 100)).run(lambda now_s: 210 if now_s < 60.0 else 40, END_S, SETTLED_S)
    assert all(load == 0.0 for name in ("v1", "v2") for load in herd.servers[name, "p0"].windows(100.0))


def test_variants_that_are_all_overloaded_share_the_load_by_their_throughput():
    herd = run((50, 200), 350)
    shares = [sum(server.windows(SETTLED_S)) for server in herd.servers.values()]
    assert shares[0] == pytest.approx(shares[1], rel=0.1)


@pytest.mark.parametrize(
    ("places", "load"),
    [(2, 0.65), (2, 1.0), *(pytest.param(4, load, marks=pytest.mark.weekly) for load in (0.65, 0.95))],
)
def test_places_of_one_variant_are_loaded_alike_though_their_states_are_old(places, load):
    herd = Herd((100,), places=places).run(lambda _: 100 * places * load, END_S, SETTLED_S)
    assert herd.spread(SETTLED_S) < SPREAD
