"""Eight drivers that select by states of up to two seconds ago, over variants of given throughput; time is counted."""

from dataclasses import dataclass, field
from itertools import pairwise

from serfer.control.selection import Catalogue, InfaasSelector, StateTracker, VariantSignals, draw_of
from serfer.core.variants import Objectives, Place
from tests.control.selection.worlds import variant

DRIVERS = 8
STEP_S = 0.05
PERIOD_S = 2.0
BATCH = 8


@dataclass
class Server:
    """A variant at a place: a queue that is served at a rate."""

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
        self.catalogue = [
            Catalogue([variant(f"v{at}", usd=(at + 1) * 1e-6, qps=each) for at, each in enumerate(qps)])
            for _ in range(DRIVERS)
        ]
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
        driver = self.queries % DRIVERS
        draw, catalogue = draw_of(f"query-{self.queries}"), self.catalogue[driver]
        chosen = InfaasSelector().get_variant(Objectives(), catalogue, self.states[driver], draw)
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
        return sum(_swings(server.windows(settled_s)) for server in self.servers.values())


def _swings(loads):
    marks = [load > 1.0 for load in loads if load > 1.0 or load < 0.2]
    return sum(before != after for before, after in pairwise(marks))
