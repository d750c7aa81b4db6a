"""`split` in the public API: options are checked before slow imports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serfer.core.costs.account import NEW, AccountQuotas
from serfer.core.costs.aws import AwsFacts, shipped_aws
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.core.costs.cost_model import MEASURED_MEMBERS
from serfer.core.costs.operator_costs import Profiles, shipped_profiles
from serfer.core.errors import PlanWarning
from serfer.core.plan import Plan, Preprocess
from serfer.extras import named_extras
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.splitter.network.description import Description, Reduction
from serfer.splitter.network.named_models import NamedModel
from serfer.splitter.plan_dir.output_directory import place_for
from serfer.splitter.planning.split_options import (
    DEFAULT_COLD_ENVIRONMENTS,
    DEFAULT_WEIGHTS,
    Budget,
    SplitOptions,
    account_of,
    check_cold_share,
    check_gang,
    check_gang_width,
    check_max_tiles,
    memory_choices,
    package_limit,
    stage_count,
)
from serfer.splitter.tiling.grids import GridLike, parse_grids

if TYPE_CHECKING:
    from serfer.splitter.head.calibration import Calibration


def split(  # noqa: PLR0913 - what a user may choose, each with a default
    model: Any,  # noqa: ANN401 - an nn.Module, or a path or name as text
    example: Any | None = None,  # noqa: ANN401 - an array or tensor
    out: Path | str = "plan",
    *,
    grids: GridLike | Sequence[GridLike] = "auto",
    stages: int | str = "auto",
    cuts: Sequence[str] = (),
    objective: str = "balanced",
    slo_ms: float | None = None,
    max_cost_usd: float | None = None,
    max_tiles: int | None = None,
    store: str = "redis",
    precision: str = "auto",
    gap: str = "auto",
    gang: str = "auto",
    gang_width: int = MEASURED_MEMBERS,
    weights: str = DEFAULT_WEIGHTS,
    cold_share: float = COLD_SHARE,
    cold_plan: str = "never",
    cold_environments: int = DEFAULT_COLD_ENVIRONMENTS,
    max_loss: float | None = None,
    calibration: Calibration | Path | str | None = None,
    memory_mb: int | Sequence[int] | None = None,
    limit_mb: int | None = None,
    account: AccountQuotas | str = NEW,
    dependency_bytes: int | Callable[[], int] = DEPENDENCY_ALLOWANCE,
    preprocess: Preprocess | Path | str | None = None,
    assume_preprocess: bool = False,
    labels: Sequence[str] | Path | str = (),
    activation: str | None = None,
    reduce: str | None = None,
    resize_output: tuple[int, int] | None = None,
    name: str | None = None,
    facts: AwsFacts | None = None,
    profiles: Profiles | None = None,
    progress: Callable[[str], None] | None = None,
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
        grids: "auto", one grid for every stage that can be spread like that, or a list with one for each stage: (rows,
            cols) tiles, or "colN" for columns of a fully connected layer.
        stages: Their number, or "auto".
        cuts: The names of operators after which to cut, in place of `stages`.
        objective: What to minimise: predicted "latency", "cost" in dollars, their product ("balanced"), or "work",
            multiply-accumulates over all tiles.
        slo_ms: The most predicted milliseconds of a warm query.
        max_cost_usd: The most expected dollars of a query, as predicted, cold ones in their share.
        max_tiles: The most tasks of a stage.
        store: The kind of store that plans are priced for: "redis", "s3" or "valkey" (ElastiCache Serverless), or two,
            "redis+s3" or "valkey+s3", between which each stage's output chooses.
        precision: "fp32", "fp16" (storage, everywhere) or "auto": fp16 where a stage would not fit its function (one
            that fetches its weights fits), or where `max_loss` allows it.
        gap: "never", "always" or "auto": global average pooling in place of a fully connected head that does not fit
            even so, fitted to `calibration`. What it loses, and what fp16 does, is measured and kept in the plan.
        gang: "never", "always" or "auto": whether consecutive stages may be one function, whose tiles keep their parts
            in memory and exchange halos while they run. "auto" has one where it is predicted to win, "always" wherever
            one is possible. Where `cuts`, a number of `stages` or each stage's grid is given, "auto" has none and
            "always" makes one of every run of stages that can be one; more stages, and more tensors at a cut, are then
            allowed. A gang needs a store whose main kind is not S3; the objective "work" has none.
        gang_width: The most members of a gang whose grid the planner chooses. Predictions agreed with
            measurements for gangs of two; wider ones are marked as simulated.
        weights: Where functions have their weights: "zip", in their packages; "fetched", in the deployment's bucket,
            from which a new environment reads them into its memory; "image", in container images; "auto", in zips where
            those hold them, and fetched elsewhere.
        cold_share: The share of the queries that find nothing warm, 0 to 1; the default is assumed. The seconds and
            dollars that `objective` has least of are those of a warm query and of such a one, in their shares;
            `slo_ms` bounds a warm query, `max_cost_usd` the expected dollars.
        cold_plan: "never", "always" or "auto": whether `out` gets a second plan of the same network, in its directory
            "cold", for queries that find nothing warm (docs/explanation/cold-starts.md): the one with the earliest
            predicted first answer. "auto" writes it where that is at least a fifth earlier than the plan's own.
            `weights`, `precision`, memory, `max_tiles` and the limits hold for it too.
        cold_environments: The most environments that a query may start on the cold plan.
        max_loss: A share of the outputs' range: weights that zips do not hold in fp32 are stored in fp16 as far as
            rounding is predicted to lose no more. A measured loss beyond it leaves weights in fp32, with a warning, or
            is refused where `precision` is "fp16".
        calibration: A folder with a folder of images for each class, or what was read of one.
        memory_mb: What functions get, or what the planner may choose from for each stage (its default).
        limit_mb: What a function's package may be (default: AWS's 250).
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
        reduce: What the first output that is a map (N, C, H, W) becomes: "argmax", the class of each position ((N, H,
            W), uint8 of up to 256 classes, else int64), "softmax", scores over its channels, or "sigmoid", of each
            value.
        resize_output: (rows, columns) to which that output is resized before, linearly.
        name: The network's, in the plan, its functions and services; by default its file's, or its class's.
        facts: Prices and quotas of AWS (default: those shipped).
        profiles: Compute times of operators (default: those shipped).
        progress: Called with each step in words.

    Raises:
        ModelError: the network cannot be read or split, or no plan keeps what was asked for.
        UsageError: options that are unknown or contradict each other.
        InputError: `out` cannot be a plan's place, or a file that was given cannot be used.
        UnavailableError: the disk is full.
        WrongAnswerError: the parts do not equal the whole.
    """
    read = (model.weights_from if isinstance(model, NamedModel) else model, calibration)
    place = place_for(Path(out), [Path(item) for item in read if isinstance(item, Path | str)])
    description = Description.of(preprocess, labels, activation, Reduction.of(reduce, resize_output), name=name)
    facts = facts or shipped_aws()
    facts.stores(store)  # refuses an unknown store
    check_gang(gang, store)
    options = SplitOptions(
        grids=parse_grids(grids),
        stages=stage_count(stages),
        cuts=tuple(cuts),
        objective=objective,
        slo_ms=slo_ms,
        max_cost_usd=max_cost_usd,
        precision=precision,
        gap=gap,
        gang=gang,
        weights=weights,
        max_loss=max_loss,
        cold_plan=cold_plan,
        cold_environments=cold_environments,
    )
    account, max_tiles = account_of(account, facts), check_max_tiles(max_tiles)
    memory = memory_choices(memory_mb, (facts if memory_mb is not None else account.within(facts)).functions)
    with named_extras():
        if callable(dependency_bytes):
            dependency_bytes = dependency_bytes()
        budget = Budget(
            limit=package_limit(limit_mb, dependency_bytes, facts.functions),
            facts=account.within(facts),
            memory_mb=memory,
            store=store,
            max_tiles=max_tiles,
            cold_share=check_cold_share(cold_share),
            gang_width=check_gang_width(gang_width),
            profiles=profiles or shipped_profiles(),
            account=account,
        )
        from serfer.splitter.build import Network, build_plan  # noqa: PLC0415 - imports onnx and what optimises its graphs, over a second

        network = Network(model, example, description, calibration, assume_preprocess)
        plan, notes = build_plan(network, place, options, budget, progress or (lambda _step: None))
    for note in notes:
        warnings.warn(note, PlanWarning, stacklevel=2)
    return plan
