"""`split` in the public API: options are checked before slow imports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serfer.core.costs.account import NEW, AccountQuotas
from serfer.core.costs.aws import AwsFacts, shipped_aws
from serfer.core.costs.operator_costs import Profiles
from serfer.core.errors import PlanWarning
from serfer.core.options import with_values
from serfer.core.plan import Plan, Preprocess
from serfer.extras import named_extras
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.network.description import Description, Reduction
from serfer.splitter.network.named_models import NamedModel
from serfer.splitter.plan_dir.output_directory import place_for
from serfer.splitter.planning.split_options import Budget, SplitOptions, account_of, check_gang

if TYPE_CHECKING:
    from serfer.splitter.head.calibration import Calibration


def split(  # noqa: PLR0913 - what a user may choose, each with a default
    model: Any,  # noqa: ANN401 - an nn.Module, or a path or name as text
    example: Any | None = None,  # noqa: ANN401 - an array or tensor
    out: Path | str = "plan",
    *,
    calibration: Calibration | Path | str | None = None,
    account: AccountQuotas | str = NEW,
    dependency_bytes: int | Callable[[], int] = DEPENDENCY_ALLOWANCE,
    preprocess: Preprocess | Path | str | None = None,
    assume_preprocess: bool = False,
    labels: Sequence[str] | Path | str = (),
    activation: str | None = None,
    facts: AwsFacts | None = None,
    profiles: Profiles | None = None,
    progress: Callable[[str], None] | None = None,
    options: SplitOptions | None = None,
    **values: Any,  # noqa: ANN401 - of SplitOptions
) -> Plan:
    """Split a model into stages and tiles and write the plan directory `out`.

    The plan is run against the model before it appears: a directory that exists is exact, and complete. Warns
    (PlanWarning) where one grid was requested and no stage can have it, where `gang` is "always" and no stages can be a
    gang, where fp16 loses more than `max_loss`, or where the check says little. In warm environments the place of
    weights makes no difference.

    Args:
        model: An nn.Module, the path of an ONNX file, "module.py:factory", "timm:NAME" or "torchvision:NAME" (a
            `NamedModel` says where their weights are from), or the name of a zoo network.
        example: An (N, C, H, W) float32 tensor or array that fixes the input's size; what is known by a name has its
            own.
        out: The plan directory; an empty directory or a plan there is replaced.
        calibration: A folder with a folder of images for each class, or what was read of one.
        account: The AWS account to plan for: "new" (3,008 MB a function, 10 environments at once), "default" (all that
            AWS's documented quotas allow), or "MB,ENVIRONMENTS". It bounds memory and the tasks of a stage where the
            planner chooses them; grids and memory that are given stand.
        dependency_bytes: The bytes of a package that are reserved for code and dependencies, or a function that
            measures them; the default covers every layer that `serfer deploy package` builds.
        preprocess: How an image becomes the input: a `serfer.Preprocess`, or the path of a TOML file
            (docs/how-to/preprocess.md). A zoo network has this, `labels` and `activation`.
        assume_preprocess: Whether images of a network of which neither `preprocess` nor its file says it are stretched
            to its size, RGB (grey for one channel), with values times 1/255 (as they are for whole numbers), as
            `serfer.open` and the command line assume. Otherwise its plan takes arrays only.
        labels: The names of the outputs, or the path of a file with one a line.
        activation: What turns the outputs into scores: "softmax", "sigmoid" or "none"; or "boxes", as `--output` of
            `serfer split` takes it, for a detector (docs/how-to/detect.md).
        facts: Prices and quotas of AWS (default: those shipped).
        profiles: Compute times of operators (default: those shipped).
        progress: Called with each step in words.
        options: How it is split.
        values: Fields of `serfer.SplitOptions` by name, in place of those of `options`: `grids=(2, 2)`.

    Raises:
        ModelError: the network cannot be read or split, or no plan keeps what was asked for.
        UsageError: options that are unknown or contradict each other.
        InputError: `out` cannot be a plan's place, or a file that was given cannot be used.
        UnavailableError: the disk is full.
        WrongAnswerError: the parts do not equal the whole.
    """
    options = with_values(SplitOptions, options, values)
    read = (model.weights_from if isinstance(model, NamedModel) else model, calibration)
    place = place_for(Path(out), [Path(item) for item in read if isinstance(item, Path | str)])
    reduction = Reduction.of(options.reduce, options.resize_output)
    description = Description.of(preprocess, labels, activation, reduction, name=options.name)
    facts = facts or shipped_aws()
    facts.stores(options.store)  # refuses an unknown store
    check_gang(options.gang, options.store)
    account = account_of(account, facts)
    with named_extras():
        if callable(dependency_bytes):
            dependency_bytes = dependency_bytes()
        budget = Budget.of(options, account, facts, dependency_bytes, profiles)
        budget = replace(
            budget, max_tiles=options.max_tiles, cold_share=options.cold_share, gang_width=options.gang_width
        )
        from serfer.splitter.build import Network, build_plan  # noqa: PLC0415 - imports onnx and what optimises its graphs, over a second

        network = Network(model, example, description, calibration, assume_preprocess)
        plan, notes = build_plan(network, place, options, budget, progress or (lambda _step: None))
    for note in notes:
        warnings.warn(note, PlanWarning, stacklevel=2)
    return plan
