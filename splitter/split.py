"""`split` in the public API: options are checked before slow imports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serfer.core.costs.account import NEW, AccountQuotas
from serfer.core.costs.aws import AwsFacts, shipped_aws
from serfer.core.costs.operator_costs import Profiles, shipped_profiles
from serfer.core.plan import Plan, Preprocess
from serfer.extras import named_extras
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from splitter.network.description import Description, Reduction
from splitter.plan_dir.output_directory import place_for
from splitter.planning.options import (
    DEFAULT_COLD_ENVIRONMENTS,
    DEFAULT_WEIGHTS,
    Budget,
    SplitOptions,
    account_of,
    check_gang,
    check_max_tiles,
    memory_choices,
    package_limit,
    stage_count,
)
from splitter.tiling.grids import GridLike, parse_grids

if TYPE_CHECKING:
    from splitter.head.calibration import Calibration


@named_extras()
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
    weights: str = DEFAULT_WEIGHTS,
    cold_plan: str = "never",
    cold_environments: int = DEFAULT_COLD_ENVIRONMENTS,
    max_loss: float | None = None,
    calibration: Calibration | Path | str | None = None,
    memory_mb: int | Sequence[int] | None = None,
    limit_mb: int | None = None,
    account: AccountQuotas | str = NEW,
    dependency_bytes: int | Callable[[], int] = DEPENDENCY_ALLOWANCE,
    preprocess: Preprocess | Path | str | None = None,
    labels: Sequence[str] | Path | str = (),
    activation: str | None = None,
    reduce: str | None = None,
    resize_output: tuple[int, int] | None = None,
    facts: AwsFacts | None = None,
    profiles: Profiles | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Split a model into stages and tiles and write the plan directory `out`.

    `model` is an nn.Module, the path of an ONNX file, "module.py:factory" or a zoo name; `example` is an (N, C, H, W)
    float32 tensor or array that fixes the input's size (a zoo model has its own).

    `grids` is "auto", one grid for every stage that can be spread like that, or a list with one for each stage: (rows,
    cols) tiles, or "colN" for columns of a fully connected layer. `stages` is "auto" or a number; `cuts` names the
    operators after which to cut instead. `objective` is what the plan has least of: predicted "latency", "cost" in
    dollars, their product ("balanced"), or "work", multiply-accumulates over all tiles; `slo_ms` and `max_cost_usd`
    bound the predicted latency and dollars of a query, `max_tiles` the tasks of a stage. Plans are priced for a `store`
    of kind "redis", "s3" or "valkey" (ElastiCache Serverless), or two, "redis+s3" or "valkey+s3", between which each
    stage's output chooses; with prices and quotas of `facts` and compute times of `profiles` (default: those shipped).

    `gang` is "never", "always" or "auto": whether consecutive stages may be one function, whose tiles keep their parts
    in memory and exchange halos while they run. "auto" has one where it is predicted to
    win, "always" in any case where one is possible. Where `cuts`, a number of `stages` or each stage's grid is given,
    "auto" has none and "always" makes one of every run of stages that can be one; more stages, and more tensors at a
    cut, are then allowed. A gang needs a store whose main kind is not S3; the objective "work" has none.

    `weights` is where functions have their weights: "zip", in their packages; "fetched", in the deployment's bucket,
    from which a new environment reads them into its memory; "image", in container images; "auto", in zips where those
    hold them, and fetched elsewhere. In warm environments the place makes no difference.

    `cold_plan` is "never", "auto" or "always": whether `out` gets a second plan of the same network, in its directory
    "cold", for queries that find nothing warm (docs/explanation/cold-starts.md): the one with the earliest predicted
    first answer on at most `cold_environments`. "auto" writes it where that is at least a fifth earlier than the
    plan's own; "always" in any case. Of the other options, `weights`, `precision`, memory, `max_tiles` and the limits
    hold for it too.

    `precision` is "fp32", "fp16" (storage, everywhere) or "auto": fp16 where a stage would not fit its function (one
    that fetches its weights fits), or where `max_loss` allows it, a share of the outputs' range: weights that zips do
    not hold in fp32 are then stored in fp16 as far as rounding is predicted to lose no more. A measured loss beyond it
    leaves weights in fp32, with a warning, or is refused where `precision` is "fp16". `gap` is "never", "always" or
    "auto": global average pooling in place of a fully connected head that does not fit even so,
    fitted to `calibration`, a folder with a folder of images for each class. What either loses is measured and kept in
    the plan.

    `preprocess` defines how an image becomes the input: a `serfer.Preprocess`, or the path of a TOML file
    (docs/how-to/preprocess.md). `labels` are the names of the outputs, or the path of a file with one a line.
    `activation` turns the outputs into scores: "softmax", "sigmoid" or "none". A zoo model has all three. `progress` is
    called with each step in words.

    `reduce` and `resize_output` make answers small: the first output that is a map (N, C, H, W) is resized to
    `resize_output`, (rows, columns), linearly, and then becomes the class of each position ("argmax": (N, H, W), uint8
    of up to 256 classes, else int64), or scores over its channels ("softmax") or of each value ("sigmoid").

    `account` is the AWS account to plan for: "new" (3,008 MB a function, 10 environments at once), "default" (all that
    AWS's documented quotas allow), or "MB,ENVIRONMENTS". It bounds memory and the tasks of a stage where the planner
    chooses them; grids and memory that are given stand.

    `memory_mb` is what functions get, or what the planner may choose from for each stage (its default); `limit_mb`
    (default: AWS's 250) what a package may be, of which `dependency_bytes` are reserved for code and dependencies: a
    number (the default covers every layer that `serfer package` builds), or a function that measures it. The plan is
    run against the model before it appears: a directory that exists is exact, and complete. An empty directory or a
    plan at `out` is replaced.

    Where one grid was requested and no stage can be spread like that, the stages have one tile, and where `gang` is
    "always" and no stages can be one, the plan has none: warns (PlanWarning).
    Raises ModelError, UsageError, InputError for an `out` that cannot be a plan's place, UnavailableError for a full
    disk, or WrongAnswerError if the parts do not equal the whole.
    """
    place = place_for(Path(out), [Path(item) for item in (model, calibration) if isinstance(item, Path | str)])
    description = Description.of(preprocess, labels, activation, Reduction.of(reduce, resize_output))
    facts = facts or shipped_aws()
    facts.stores(store)  # refuses an unknown store
    check_gang(gang, store)
    options = SplitOptions(
        parse_grids(grids),
        stage_count(stages),
        tuple(cuts),
        objective,
        slo_ms,
        max_cost_usd,
        precision,
        gap,
        gang,
        weights,
        max_loss,
        cold_plan,
        cold_environments,
    )
    account, most_tiles = account_of(account, facts), check_max_tiles(max_tiles)
    memory = memory_choices(memory_mb, (facts if memory_mb is not None else account.within(facts)).functions)
    if callable(dependency_bytes):
        dependency_bytes = dependency_bytes()
    limit = package_limit(limit_mb, dependency_bytes, facts.functions)
    profiles = profiles or shipped_profiles()
    budget = Budget(limit, account.within(facts), memory, store, most_tiles, profiles=profiles, account=account)
    from splitter.build import build_plan  # noqa: PLC0415 - imports onnx and what optimises its graphs, over a second

    return build_plan(model, example, place, options, budget, description, calibration, progress or _report_no_progress)


def _report_no_progress(_step: str) -> None:
    """Report no progress."""
