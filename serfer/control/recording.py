"""Recordings of a live policy, and their replay under the same policy or another one.

A recording is what the policy began with, saw and decided, one JSON object a line:

    {"format": "serfer policy recording", "version": 1, "policy": NAME, "scenario": DIGEST, "fresh": BOOL, "state": ...}
    {"resume": [group, ...]}                       instances that were on when the service started
    {"seen": observation, "plan": plan}            a decision, before the ceiling of dollars
    {"seen": observation, "error": "TypeError"}    the policy failed

`state` is the policy's snapshot where it did not begin fresh, null where it has none: then it cannot be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from serfer.control.nonuniform.replayed_shares import DispatchAccount, DispatchedShare
from serfer.control.policy import InstanceGroup, Learner, Observation, Policy, ProvisioningPlan
from serfer.control.rate_account import AccountedPolicy, RateAccount
from serfer.control.scenario import Scenario
from serfer.control.snapshots import MAX_SNAPSHOT_BYTES, Snapshot, read_json
from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError

FORMAT: Final = "serfer policy recording"
VERSION: Final = 1
MAX_RECORDING_BYTES: Final = 256 * 1024 * 1024
_MAX_LINE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class Header:
    """What a recording is of, and what its policy began with."""

    policy: str
    scenario: str
    fresh: bool
    state: Snapshot | None

    def begin(self, policy: Policy) -> None:
        """Have a policy begin as the recorded one did; raises InputError where that is not known."""
        if self.fresh:
            return
        if self.state is None or not isinstance(policy, Learner):
            raise InputError(f"the recorded {self.policy} had learnt something before, which a recording of it lacks")
        policy.restore(self.state)


@dataclass(frozen=True)
class RunningFleet:
    """Instances that were on when the service started."""

    resume: tuple[InstanceGroup, ...]


@dataclass(frozen=True)
class Decision:
    """An observation, and the plan that followed; None where the policy failed."""

    seen: Observation
    plan: ProvisioningPlan | None = None
    error: str | None = None


def header_fields(policy: Policy, scenario: Scenario, *, fresh: bool) -> Snapshot:
    """Return the first line's fields: of a policy that begins fresh, or with what it has learnt so far."""
    state = None if fresh else _state_of(policy)
    names = {"format": FORMAT, "version": VERSION, "policy": policy.name, "scenario": scenario.digest}
    return {**names, "fresh": fresh, "state": state}


def _state_of(policy: Policy) -> Snapshot | None:
    """Return what a policy has learnt; None where it cannot tell."""
    if not isinstance(policy, Learner):
        return None
    try:
        return policy.snapshot()
    except Exception:  # noqa: BLE001 - a policy of someone's own may raise anything, and decisions go on
        return None


def event_fields(event: RunningFleet | Decision) -> Snapshot:
    """Return a later line's fields; those that are empty are left out."""
    fields: Snapshot = unstructure(event)
    return {key: _brief(value) for key, value in fields.items() if value is not None}


def _brief(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Leave out what is empty, and batch sizes that were never set: earlier versions read the rest."""
    if isinstance(value, list):
        return [_brief(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: _brief(one) for key, one in value.items() if one not in (None, []) and (key, one) != ("batch", 0)}


def read_recording(path: Path) -> tuple[Header, Iterator[RunningFleet | Decision]]:
    """Open a recording; its lines are read one by one. Raises InputError that names the file and the line.

    A last line without its end is left out: the service was ended while it wrote that.
    """
    lines = _lines(path)
    number, line = next(lines, (1, b""))
    where = f"{path}, line {number}"
    fields = read_json(line, where)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise InputError(f"{path} is not a recording of serfer serve --record")
    if fields.get("version") != VERSION:
        raise InputError(f"{path} is a recording of version {fields.get('version')!r:.20}, this SerFer reads {VERSION}")
    state = fields.pop("state", None)
    if state is not None and not isinstance(state, dict):
        raise InputError(f"{where}: state should be an object")
    known = structure(_Names, {key: fields.get(key) for key in _NAMES}, where, error=InputError)
    return Header(known.policy, known.scenario, known.fresh, state), _events(path, lines)


@dataclass(frozen=True)
class _Names:
    policy: str
    scenario: str
    fresh: bool


_NAMES: Final = ("policy", "scenario", "fresh")


def _events(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[RunningFleet | Decision]:
    for number, line in lines:
        where = f"{path}, line {number}"
        fields = read_json(line, where)
        if isinstance(fields, dict) and "resume" in fields:
            yield structure(RunningFleet, fields, where, error=InputError)
            continue
        event = structure(Decision, _whole(fields), where, error=InputError)
        seen = event.seen
        if not (math.isfinite(seen.now_s) and 0 <= seen.elapsed_s < math.inf and 0 <= seen.rate < math.inf):
            raise InputError(f"{where}: times and rates are finite, and not negative")
        yield event


def _whole(fields: object) -> object:
    """Return the fields with those that a plan's line leaves out where they are empty."""
    if isinstance(fields, dict) and isinstance(plan := fields.get("plan"), dict):
        return {**fields, "plan": {"instances": [], **plan}}
    return fields


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines with their numbers; raises InputError."""
    try:
        with path.open("rb") as file:
            yield from _bounded_lines(path, file)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _bounded_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number, most = 0, MAX_SNAPSHOT_BYTES
    while line := file.readline(most + 1):
        number += 1
        if len(line) > most:
            raise InputError(f"{path}, line {number} has more than {most:,} bytes")
        if not line.endswith(b"\n"):
            return
        yield number, line
        most = _MAX_LINE_BYTES
        if file.tell() > MAX_RECORDING_BYTES + MAX_SNAPSHOT_BYTES:
            raise InputError(f"{path} is larger than a recording can be")


@dataclass(frozen=True)
class Difference:
    """The first observation (counted from 1) after which another plan followed; None where a policy failed."""

    at: int
    now_s: float
    recorded: ProvisioningPlan | None
    replayed: ProvisioningPlan | None


@dataclass(frozen=True)
class Totals:
    """What a policy wanted, at most and on average over time, and what that costs at the level of rates."""

    policy: str
    most_instances: int
    mean_instances: float
    serverless_usd: float
    instances_usd: float

    @classmethod
    def of(cls, policy: str, account: RateAccount) -> Totals:
        """Return the totals of an account."""
        mean = account.instance_s / account.seconds if account.seconds else 0.0
        return cls(policy, account.most_instances, mean, account.serverless_usd, account.instances_usd)

    @property
    def usd(self) -> float:
        """Dollars of both targets."""
        return self.serverless_usd + self.instances_usd


@dataclass(frozen=True)
class ReplayReport:
    """The decisions of a recording beside those of a replay; `same` counts equal plans, `first` is where they part.

    `dispatch` is where the recorded driver sent its queries, under a policy that dispatches by rates.
    """

    decisions: int
    seconds: float
    same: int
    first: Difference | None
    recorded: Totals
    replayed: Totals
    dispatch: tuple[DispatchedShare, ...] = ()


def replay(
    header: Header, events: Iterable[RunningFleet | Decision], scenario: Scenario, policy: Policy
) -> ReplayReport:
    """Run a policy that has seen nothing yet over a recording; raises InputError where that is of another scenario.

    The recorded policy sees what it saw. Another one sees the same load, and the fleet that it would have had.
    """
    if header.scenario != scenario.digest:
        raise InputError("the recording was made with other prices or speeds than --scenario has: give that scenario")
    same_policy = policy.name == header.policy
    if same_policy:
        header.begin(policy)
    recorded, replayed = RateAccount(scenario), AccountedPolicy(policy, scenario, same_fleet=same_policy)
    dispatch = DispatchAccount(scenario)
    decisions = same = 0
    first = None
    for event in events:
        if isinstance(event, RunningFleet):
            recorded.adopt(event.resume)
            replayed.resume(event.resume)
            continue
        seen = event.seen
        dispatch.take(seen)
        recorded.pass_time(seen.elapsed_s, seen.rate)
        if event.plan is not None:
            recorded.want(event.plan)
        plan = _plan_of(replayed, seen)
        decisions += 1
        if plan == event.plan:
            same += 1
        elif first is None:
            first = Difference(decisions, seen.now_s, event.plan, plan)
    totals = Totals.of(header.policy, recorded), Totals.of(policy.name, replayed.account)
    return ReplayReport(decisions, recorded.seconds, same, first, *totals, dispatch.rows())


def _plan_of(policy: AccountedPolicy, seen: Observation) -> ProvisioningPlan | None:
    try:
        return policy.observe(seen)
    except Exception:  # noqa: BLE001 - the live one's errors are survived and recorded, too
        return None
