"""`serfer split`: a network becomes a plan directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from serfer.cli.explain import changes_of, print_plan_json
from serfer.cli.shared.network_options import example_of, range_in, tell_reading
from serfer.cli.shared.options import status_line
from serfer.cli.shared.plan_commands import SplitCommand
from serfer.cli.shared.plan_summary import print_summary
from serfer.cli.shared.terminal import complain
from serfer.core.costs.account import AccountQuotas
from serfer.core.errors import ModelError, UsageError
from serfer.core.options import changed
from serfer.core.plan import Plan, explained
from serfer.core.units import MIB
from serfer.doctor.accounts import quotas_for
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.settings import Settings, load_settings
from serfer.splitter.planning.split_options import SplitOptions

_BOUNDS = ("--grids", "--stages", "cuts", "gang", "max_tiles", "max_cost_usd")
"""The options that rule plans out."""


def split(options: SplitCommand, _context: typer.Context) -> None:
    model, sizes = options.model, range_in(options.size)
    if sizes and not options.whole:
        raise UsageError(f"--size {sizes} is a range of sizes: it goes with --whole, as tiles are those of one size")
    example = example_of(options.size, options.channels, model, ranges=True)
    if example is None and ".py:" in model:
        path, _, factory = model.rpartition(":")
        if not Path(path).exists():
            raise ModelError(f"{path} does not exist: give the Python file that has {factory}()")
        raise UsageError(f"the size of {model}'s input is not known: give --size HEIGHTxWIDTH")
    chosen, searched = options.model_with_weights(model), changed(options, SplitOptions())
    settings = load_settings()
    quotas = quotas_for(settings, options.account)
    how: dict[str, Any] = {
        "assume_preprocess": True,
        "preprocess": options.preprocess,
        "labels": options.labels or (),
        "activation": options.output,
        "account": quotas,
        "facts": settings.facts(),
        "profiles": settings.profiles(options.profiles, options.safety),
        "options": options,
    }
    with status_line() as progress:
        if options.whole:
            if options.calibration:
                raise UsageError("a whole plan splits nothing, and chooses from nothing: leave out calibration")
            from serfer.splitter.whole import whole_plan  # noqa: PLC0415 - the command line starts fast

            plan = whole_plan(chosen, example, options.out, sizes=sizes, progress=progress, **how)
        else:
            from serfer.splitter.split import split as split_model  # noqa: PLC0415 - the command line starts fast

            how |= {
                "calibration": options.calibration,
                "dependency_bytes": lambda: dependency_bytes(settings, progress),
            }
            plan = split_model(chosen, example, options.out, progress=progress, **how)
    if options.as_json:
        print_plan_json(plan, options.per_month)
    else:
        given = ["--whole"] if options.whole else [flag for flag in searched if flag in _BOUNDS]
        print_summary(plan, options.out, settings.facts(), options.per_month, given)
        for line in changes_of(plan):
            complain(line)
        tell_reading(plan, options.preprocess, options.output)
    _warn_of_aws(plan, settings, quotas)


def _warn_of_aws(plan: Plan, settings: Settings, quotas: AccountQuotas) -> None:
    from serfer.sam.quotas import account_notes  # noqa: PLC0415 - imports botocore

    if (limit := explained(plan.limit).package) > settings.facts().functions.package_limit:
        complain(f"with limit_mb={limit // MIB}, more than AWS allows, this plan runs on this machine only")
        return
    for note in account_notes([plan], quotas):
        complain(f"in AWS: {note}")


def dependency_bytes(settings: Settings, progress: Callable[[str], None]) -> int:
    from serfer.wiring import local  # noqa: PLC0415 - imports what local workers need

    return max(DEPENDENCY_ALLOWANCE, local.dependency_bytes(settings, progress))
