"""The options of `split`, checked before a network is read; this module imports nothing slow."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from serfer.core.costs.account import NEW, AccountQuotas
from serfer.core.costs.aws import AwsFacts, LambdaFacts
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.core.costs.cost_model import MEASURED_MEMBERS, Platform
from serfer.core.costs.operator_costs import Profiles, shipped_profiles
from serfer.core.errors import UsageError
from serfer.core.options import Options, option
from serfer.core.plan import FETCHED, ZIP, PackageLimit
from serfer.core.units import MIB, MS_PER_S
from serfer.splitter.map_plan_options import memory_in
from serfer.splitter.planning.search import BALANCED, COST, LATENCY, Goal
from serfer.splitter.tiling.grids import GridChoice, parse_grids

OBJECTIVES = {"latency": LATENCY, "cost": COST, "balanced": BALANCED, "work": LATENCY}
DEFAULT_WEIGHTS = "auto"
MOST_COLD_ENVIRONMENTS = 32
MAX_STAGES = 16
MAX_GANG_STAGES = 256
"""Stages of a plan at most where runs of them become gangs: each is a step inside a function, not an invocation."""
_VCPU_SIZES = 4
WeightsMode = Literal["auto", "zip", "fetched", "image"]
When = Literal["auto", "never", "always"]


def size_in(option: str, size: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if match is None:
        raise UsageError(f"{option} {size!r} is not a size: write HEIGHTxWIDTH such as 224x224")
    return int(match[1]), int(match[2])


def stage_count(stages: int | str | None) -> int | None:
    if stages in ("auto", None):
        return None
    if isinstance(stages, bool) or not (isinstance(stages, int) or str(stages).isdecimal()):
        raise UsageError(f'stages must be "auto" or a number, not {stages!r}')
    return int(stages)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"cuts {text!r} lacks a name: write operators with commas between them")
    return names


@dataclass(frozen=True, kw_only=True)
class FunctionOptions(Options):
    """What a plan's functions have, and what they are priced for."""

    weights: WeightsMode = option(
        DEFAULT_WEIGHTS,
        "Where functions have their weights: zip; fetched, from the deployment's bucket, by each new environment; "
        "image, in container images; or auto: in zips where those hold them, else fetched.",
    )
    memory_mb: int | Sequence[int] | None = option(
        None,
        "MB of each function, several to choose from, or auto: 1 to 4 vCPUs or all there are.",
        "--memory",
        read=memory_in,
        shown="auto",
    )
    store: str = option("redis", "What predictions are for: redis, s3, valkey, or redis+s3, valkey+s3.")
    limit_mb: int | None = option(
        None, "MB that a function's package may have; AWS allows 250, workers on this machine any."
    )
    name: str | None = option(
        None, "The network's name in the plan and in services; by default its file's, or its own."
    )


@dataclass(frozen=True, kw_only=True)
class SplitOptions(FunctionOptions):
    """How a network is split: grids, stages or cuts, the goal, and what may be changed for it.

    Raises UsageError for options that are unknown or contradict each other.
    """

    grids: GridChoice = option(
        "auto",
        "auto; one grid for every stage that can be spread like that; or one for each, as 2x2,2x2,col4,1. RxC: tiles "
        "of a map; colN: columns of a fully connected layer.",
        read=parse_grids,
    )
    stages: int | None = option("auto", "How many stages, or auto.", read=stage_count)
    cuts: tuple[str, ...] = option((), "Cut after these operators (see explain --operators).", read=_names)
    objective: Literal["latency", "cost", "balanced", "work"] = option(
        "balanced",
        "What to have least of, as predicted: latency, cost, balanced (their product), or work: multiply-accumulates "
        "over all tiles.",
    )
    slo_ms: float | None = option(None, "Milliseconds that a warm query may take, as predicted.")
    max_cost_usd: float | None = option(None, "Dollars that a query may cost, as predicted, cold ones in their share.")
    max_tiles: int | None = option(None, "Tasks that a stage may have at most.", least=1)
    precision: Literal["auto", "fp32", "fp16"] = option(
        "auto", "Storage of weights: fp32, fp16, or auto (fp16 where max_loss allows it, or a stage would not fit)."
    )
    max_loss: float | None = option(
        None,
        "What storing weights in fp16 may lose, as a share of the outputs' range, predicted and measured; without it, "
        "weights stay in fp32 unless nothing else fits.",
    )
    gap: When = option(
        "auto",
        "Global average pooling in place of a fully connected head: never, always, or auto (where the head does not "
        "fit even in fp16, and there are calibration images to fit it to).",
    )
    gang: When = option(
        "auto",
        "Consecutive stages as one function, whose tiles stay and exchange halos while they run: never, always, or "
        "auto, where that is predicted to win. With cuts, stages or several grids, auto has none and always makes one "
        "of every run of stages that can be one. Not over S3.",
    )
    gang_width: int = option(
        MEASURED_MEMBERS,
        "Members of a gang at most, where the planner chooses its grid. Predictions agreed with measurements for "
        "gangs of two; wider ones are marked as simulated.",
        least=MEASURED_MEMBERS,
    )
    cold_share: float = option(
        COLD_SHARE,
        "The share of queries that find nothing warm, 0 to 1: what the objective has least of are latency and dollars "
        "of a warm query and of such a one, in their shares. The default is assumed.",
        least=0,
        most=1,
    )
    cold_plan: When = option(
        "never",
        "A second plan, in DIR/cold, for queries that find nothing warm: never; always; or auto, where its first "
        "answer is predicted to come at least a fifth earlier.",
    )
    cold_environments: int = option(
        8, "Environments that a query on the cold plan may start, at most.", least=1, most=MOST_COLD_ENVIRONMENTS
    )
    reduce: str | None = option(
        None,
        "Make answers small, in the last stage's tiles: of the first output that is a map, argmax, the class of each "
        "position; softmax, over channels; or sigmoid.",
    )
    resize_output: tuple[int, int] | None = option(
        None,
        "Resize that output first, linearly, to so many rows x columns.",
        metavar="HxW",
        read=partial(size_in, "resize_output"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grids", parse_grids(self.grids))
        object.__setattr__(self, "stages", stage_count(self.stages))
        most = MAX_GANG_STAGES if self.gang == "always" else MAX_STAGES
        if self.stages is not None and not 1 <= self.stages <= most:
            raise UsageError(f"--stages must be between 1 and {most}, not {self.stages}")
        if self.max_loss is not None and not 0 <= self.max_loss < 1:
            raise UsageError(f"max_loss is a share of the outputs' range from 0 to 1, not {self.max_loss:g}")
        if self.max_loss is not None and self.precision == "fp32":
            raise UsageError("--precision fp32 loses nothing: leave out max_loss, or allow fp16 by --precision auto")
        for name, value in (("--slo-ms", self.slo_ms), ("--max-cost-usd", self.max_cost_usd)):
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be more than 0, not {value:g}")
        if self.cuts and self.stages not in (None, len(self.cuts) + 1):
            raise UsageError(f"{len(self.cuts)} cuts make {len(self.cuts) + 1} stages, not {self.stages}")

    @property
    def goal(self) -> Goal:
        return replace(
            OBJECTIVES[self.objective],
            most_seconds=float("inf") if self.slo_ms is None else self.slo_ms / MS_PER_S,
            most_usd=float("inf") if self.max_cost_usd is None else self.max_cost_usd,
        )

    @property
    def places(self) -> tuple[str, ...]:
        return places_of(self.weights)

    @property
    def asks_for_columns(self) -> bool:
        grids = self.grids.per_stage or ((self.grids.requested,) if self.grids.requested else ())
        return any(grid.columns for grid in grids)


@dataclass(frozen=True)
class Budget:
    """The limits of a plan's functions, and its platform: `store` is a kind of store, or two as in "valkey+s3".

    An `account` bounds how many tasks of a stage there may be where the planner chooses the grid. `cold_share` is the
    share of the queries that find nothing warm, `gang_width` the most members of a gang whose grid the planner chooses.
    """

    limit: PackageLimit
    facts: AwsFacts
    memory_mb: tuple[int, ...]
    store: str = "redis"
    max_tiles: int | None = None
    cold_share: float = 0.0
    profiles: Profiles = field(default_factory=shipped_profiles)
    account: AccountQuotas | None = None
    gang_width: int | None = None

    @classmethod
    def of(
        cls,
        options: FunctionOptions,
        account: AccountQuotas,
        facts: AwsFacts,
        dependency_bytes: int,
        profiles: Profiles | None,
    ) -> Budget:
        """Return the limits of an account's functions; raises UsageError for sizes that they cannot have."""
        within = account.within(facts)
        return cls(
            limit=package_limit(options.limit_mb, dependency_bytes, facts.functions),
            facts=within,
            memory_mb=memory_choices(options.memory_mb, (facts if options.memory_mb is not None else within).functions),
            store=options.store,
            profiles=profiles or shipped_profiles(),
            account=account,
        )

    def most_tiles(self, *, chosen: bool) -> int:
        """Return how many tasks a stage may have at most, of a grid that the planner chooses or the user did."""
        most = self.max_tiles or sys.maxsize
        return min(most, self.account.at_once) if self.account and chosen else most

    @property
    def platform(self) -> Platform:
        return Platform.over(self.facts, self.store, self.cold_share)


def places_of(weights: str) -> tuple[str, ...]:
    return (ZIP, FETCHED) if weights == "auto" else (weights,)


def check_gang(gang: str, store: str) -> None:
    if gang == "always" and not exchanges(store):
        raise UsageError(f"a gang's functions cannot wait for one another's messages in {store}: use --set gang=never")


def exchanges(store: str) -> bool:
    """Return whether functions can exchange messages through a kind of store: S3 does not wake who waits."""
    return not store.startswith("s3")


def account_of(account: AccountQuotas | str, facts: AwsFacts) -> AccountQuotas:
    """Read the `account` argument; raises UsageError. A new account is assumed where nothing else is said."""
    if isinstance(account, AccountQuotas):
        return account
    return AccountQuotas.new(facts) if account == NEW else AccountQuotas.parse(account, facts)


def memory_sizes(functions: LambdaFacts) -> tuple[int, ...]:
    """Return the MB that functions may have by default: one to four vCPUs, and the most that there is."""
    vcpus = (round(number * functions.memory_per_vcpu) for number in range(1, _VCPU_SIZES + 1))
    return (*(size for size in vcpus if size < functions.memory_max), functions.memory_max)


def memory_choices(memory_mb: int | Sequence[int] | None, functions: LambdaFacts) -> tuple[int, ...]:
    """Return the MB that functions may have, ascending; raises UsageError for sizes that AWS does not have."""
    if memory_mb is None:
        return memory_sizes(functions)
    sizes = (memory_mb,) if isinstance(memory_mb, int) else tuple(memory_mb)
    for size in sizes:
        if not functions.memory_min <= size <= functions.memory_max:
            raise UsageError(f"memory must be {functions.memory_min} to {functions.memory_max} MB, not {size}")
    if not sizes:
        raise UsageError("memory must be a number of MB, or several to choose from")
    return tuple(sorted(set(sizes)))


def package_limit(limit_mb: int | None, dependency_bytes: int, functions: LambdaFacts) -> PackageLimit:
    """Return what a function's package may have; raises UsageError where nothing is left for weights."""
    limit = functions.package_limit if limit_mb is None else limit_mb * MIB
    if limit <= dependency_bytes:
        least = dependency_bytes // MIB + 1
        raise UsageError(
            f"a function's package has {dependency_bytes / MIB:.1f} MB of code and dependencies: its limit must be at "
            f"least {least} MB, not {limit // MIB}"
        )
    return PackageLimit(limit, dependency_bytes)
