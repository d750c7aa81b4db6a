"""Where a recorded driver sent its queries is where the rates of the recording say."""

from collections import Counter

import pytest

from serfer.control.nonuniform.rate_dispatcher import RateDispatcher
from serfer.control.nonuniform.replayed_shares import DispatchAccount
from serfer.control.policies import make_policy
from serfer.control.policy import Dispatched, InstanceGroup, InstanceState, Observation
from serfer.control.recording import Decision, event_fields, header_fields, read_recording, replay
from serfer.control.scenario import Market
from serfer.control.snapshots import write_json
from tests.control.nonuniform.test_rate_dispatcher import WORLD, Place

TARGETS = [Place("large", 0, 16), Place("small", 0, 2)]
FLEET = tuple(InstanceGroup("gpu", Market.ON_DEMAND, InstanceState.SERVING, 1, one.batch) for one in TARGETS)
RATES = [50, 150, 150, 300, 320, 500, 500, 200, 200]


def observations():
    """Return what a driver alone sees that dispatches by rates, each second."""
    dispatcher = RateDispatcher(WORLD)
    for second, rate in enumerate(RATES):
        sent = Counter()
        for _ in range(rate):
            place = dispatcher.choose(TARGETS, 1, lambda _place: True)
            sent["" if place is None else "gpu", 0 if place is None else TARGETS[place].batch] += 1
        dispatched = tuple(Dispatched(images, *target) for target, images in sorted(sent.items()))
        yield Observation(float(second), 1.0, float(rate), FLEET, dispatched=dispatched)
        dispatcher.observe(rate, 1.0)


def test_a_recording_holds_batch_sizes_and_dispatch_and_its_replay_gives_the_same_shares(tmp_path):
    policy, path = make_policy("nonuniform", WORLD), tmp_path / "recording"
    lines = [header_fields(policy, WORLD, fresh=True)]
    lines += [event_fields(Decision(seen, policy.observe(seen))) for seen in observations()]
    path.write_bytes(b"".join(write_json(line) + b"\n" for line in lines))
    header, events = read_recording(path)
    report = replay(header, events, WORLD, make_policy("nonuniform", WORLD))
    assert report.first is None
    assert report.same == report.decisions == len(RATES)
    found = {(one.kind, one.batch): one for one in report.dispatch}
    assert found.keys() == {("", 0), ("gpu", 2), ("gpu", 16)}
    assert sum(one.recorded for one in report.dispatch) == sum(RATES)
    for one in report.dispatch:
        assert one.replayed == pytest.approx(one.recorded, abs=len(RATES))


def test_a_driver_that_sends_elsewhere_is_seen():
    account = DispatchAccount(WORLD)
    for second in range(5):
        account.take(Observation(float(second), 1.0, 100.0, FLEET, dispatched=(Dispatched(100, "gpu", 2),)))
    wrong = {(one.kind, one.batch): one.recorded - one.replayed for one in account.rows()}
    assert wrong["gpu", 2] > 100


def test_recordings_of_other_policies_have_no_dispatch():
    account = DispatchAccount(WORLD)
    account.take(Observation(0.0, 1.0, 100.0, FLEET))
    assert account.rows() == ()
