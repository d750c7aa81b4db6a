"""`serfer study simulate --replay`: a policy on what a live service recorded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from serfer.cli.shared.display import columns, plain
from serfer.cli.shared.options import print_json
from serfer.cli.shared.terminal import out
from serfer.core.errors import WrongAnswerError

if TYPE_CHECKING:
    from serfer.control.policy import InstanceCount, ProvisioningPlan
    from serfer.control.recording import Difference, ReplayReport


def replay_recording(file: Path, scenario: Path, policy: str | None, *, as_json: bool) -> None:
    """Replay a recording and print the report; raises WrongAnswerError where its own policy decides otherwise."""
    from serfer.control.policies import make_policy  # noqa: PLC0415 - the command line starts fast
    from serfer.control.recording import read_recording, replay  # noqa: PLC0415 - same
    from serfer.control.scenario_files import read_scenario  # noqa: PLC0415 - same

    world = read_scenario(scenario)
    header, events = read_recording(file)
    name = policy or header.policy
    report = replay(header, events, world, make_policy(name, world))
    if as_json:
        print_json(asdict(report))
    else:
        _print(report)
    if report.first is not None and name == header.policy:
        raise WrongAnswerError(
            f"{name} decides otherwise than it did, first at {_place(report.first)}: is it the same version of SerFer?"
        )


def _print(report: ReplayReport) -> None:
    out.print(f"{report.decisions:,} decisions in {report.seconds / 3600:,.2f} h, {report.same:,} of them the same")
    if report.first is not None:
        out.print(plain(f"the first difference: {_place(report.first)}"))
    sides = (report.recorded, report.replayed)
    names = f"{report.recorded.policy}, recorded", f"{report.replayed.policy}, replayed"
    table = columns("", *map(plain, names))
    table.add_row("instances wanted, on average", *(f"{one.mean_instances:,.2f}" for one in sides))
    table.add_row("instances wanted, at most", *(f"{one.most_instances:,}" for one in sides))
    table.add_row("Lambda $", *(f"{one.serverless_usd:,.4f}" for one in sides))
    table.add_row("instances $", *(f"{one.instances_usd:,.4f}" for one in sides))
    table.add_row("cost $", *(f"{one.usd:,.4f}" for one in sides))
    for one in report.dispatch:
        where = f"images to {one.kind} in batches of {one.batch or 'any size'}" if one.kind else "images to Lambda"
        table.add_row(plain(where), f"{one.recorded:,}", f"{one.replayed:,.0f}")
    out.print(table)


def _place(first: Difference) -> str:
    recorded, replayed = _words(first.recorded), _words(first.replayed)
    return f"observation {first.at:,} (at {first.now_s:.3f} s): recorded {recorded}; replayed {replayed}"


def _group(group: InstanceCount) -> str:
    batch = f" in batches of {group.batch}" if group.batch else ""
    return f"{group.count} {group.kind} {group.market}{batch}"


def _words(plan: ProvisioningPlan | None) -> str:
    if plan is None:
        return "an error"
    groups = ", ".join(map(_group, plan.instances)) or "no instances"
    warm = f", {plan.warm} environments warm" if plan.warm else ""
    return f"{groups}{warm} ({plan.reason})"
