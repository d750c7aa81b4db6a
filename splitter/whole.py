"""`whole_plan` in the public API: the plan of one task that runs a network as it is, made in seconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serfer.core.costs.account import NEW, AccountQuotas
from serfer.core.costs.aws import AwsFacts, shipped_aws
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.core.costs.operator_costs import Profiles
from serfer.core.errors import PlanWarning, UsageError
from serfer.core.options import changed, with_values
from serfer.core.plan import InputSizes, Plan, Preprocess
from serfer.extras import named_extras
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.network.description import Description
from serfer.splitter.network.named_models import NamedModel
from serfer.splitter.plan_dir.output_directory import place_for
from serfer.splitter.planning.split_options import Budget, FunctionOptions, SplitOptions, account_of, places_of


def whole_plan(  # noqa: PLR0913 - what a user may choose, each with a default
    model: Any,  # noqa: ANN401 - an nn.Module, or a path or name as text
    example: Any | None = None,  # noqa: ANN401 - an array or tensor
    out: Path | str = "plan",
    *,
    preprocess: Preprocess | Path | str | None = None,
    assume_preprocess: bool = False,
    labels: Sequence[str] | Path | str = (),
    activation: str | None = None,
    sizes: str | None = None,
    account: AccountQuotas | str = NEW,
    facts: AwsFacts | None = None,
    profiles: Profiles | None = None,
    progress: Callable[[str], None] | None = None,
    options: FunctionOptions | None = None,
    **values: Any,  # noqa: ANN401 - of FunctionOptions
) -> Plan:
    """Write the plan of one task that runs a network as it is: any with one image input that ONNX Runtime runs.

    Nothing of the network is rewritten, and nothing is searched: that takes seconds, where `split` may take minutes.
    The plan is run against the model before it appears. Arguments and errors are those of `split`; `values` are fields
    of `serfer.FunctionOptions`.

    With `sizes`, such as "32..2016x32..2016,multiple=32,pixels=1048576", a file whose rows and columns are open takes
    images of all of these; an example then has the largest. Each query has one size.
    """
    options = with_values(FunctionOptions, options, values)
    if isinstance(options, SplitOptions):
        taken = changed(options, FunctionOptions())
        if wrong := [flag for flag in changed(options, SplitOptions()) if flag not in taken]:
            raise UsageError(f"a whole plan splits nothing, and chooses from nothing: leave out {', '.join(wrong)}")
    read = model.weights_from if isinstance(model, NamedModel) else model
    place = place_for(Path(out), [Path(read)] if isinstance(read, Path | str) else [])
    description = Description.of(preprocess, labels, activation, name=options.name)
    facts = facts or shipped_aws()
    facts.stores(options.store)  # refuses an unknown store
    budget = Budget.of(options, account_of(account, facts), facts, DEPENDENCY_ALLOWANCE, profiles)
    budget = replace(budget, cold_share=COLD_SHARE)
    with named_extras():
        from serfer.splitter.build import Network, whole  # noqa: PLC0415 - imports onnx, over a second

        many = InputSizes.of(sizes) if sizes is not None else None
        network = Network(model, _example(model, example, many), description, None, assume_preprocess)
        plan, notes = whole(network, place, budget, places_of(options.weights), progress or (lambda _step: None), many)
    for note in notes:
        warnings.warn(note, PlanWarning, stacklevel=2)
    return plan


def _example(model: Any, example: Any | None, sizes: InputSizes | None) -> Any | None:  # noqa: ANN401 - as above
    if sizes is None:
        return example
    rows, columns = sizes.largest
    if example is not None:
        if tuple(example.shape[-2:]) != (rows, columns):
            raise UsageError(f"the example of {sizes} should have the largest of these sizes, {rows} x {columns}")
        return example
    from serfer.splitter.network.source import channels_of, noise  # noqa: PLC0415 - as above

    return noise(channels_of(model), (rows, columns))
