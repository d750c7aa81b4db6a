"""The options of `split`, checked before a network is read; this module imports nothing slow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from serfer.core.costs.account import NEW, AccountQuotas
from serfer.core.costs.aws import AwsFacts, LambdaFacts
from serfer.core.costs.cost_model import MEASURED_MEMBERS, Platform
from serfer.core.costs.operator_costs import Profiles, shipped_profiles
from serfer.core.errors import UsageError
from serfer.core.plan import FETCHED, WEIGHT_PLACES, ZIP, PackageLimit
from serfer.core.units import MIB, MS_PER_S
from serfer.splitter.planning.search import BALANCED, COST, LATENCY, Goal
from serfer.splitter.tiling.grids import GridChoice

OBJECTIVES = {"latency": LATENCY, "cost": COST, "balanced": BALANCED, "work": LATENCY}
PRECISIONS = ("auto", "fp32", "fp16")
GAP_MODES = ("auto", "never", "always")
GANG_MODES = ("auto", "never", "always")
WEIGHT_MODES = (*WEIGHT_PLACES, "auto")
DEFAULT_WEIGHTS = "auto"
COLD_PLAN_MODES = ("never", "auto", "always")
DEFAULT_COLD_ENVIRONMENTS = 8
MOST_COLD_ENVIRONMENTS = 32
_VCPU_SIZES = 4


@dataclass(frozen=True)
class SplitOptions:
    """Grids, a number of stages, cuts after operators, the goal, and which optimisations are allowed.

    `cold_plan` says whether there is a second plan for queries that find nothing warm, and `cold_environments` how many
    such a query may start at most.
    Raises UsageError for options that are unknown or contradict each other.
    """

    grids: GridChoice
    stages: int | None
    cuts: tuple[str, ...] = ()
    objective: str = "balanced"
    slo_ms: float | None = None
    max_cost_usd: float | None = None
    precision: str = "auto"
    gap: str = "auto"
    gang: str = "auto"
    weights: str = DEFAULT_WEIGHTS
    max_loss: float | None = None
    cold_plan: str = "never"
    cold_environments: int = DEFAULT_COLD_ENVIRONMENTS

    def __post_init__(self) -> None:
        _check_name("objective", self.objective, tuple(OBJECTIVES))
        _check_name("precision", self.precision, PRECISIONS)
        _check_name("gap", self.gap, GAP_MODES)
        _check_name("gang", self.gang, GANG_MODES)
        _check_name("weights", self.weights, WEIGHT_MODES)
        _check_name("cold_plan", self.cold_plan, COLD_PLAN_MODES)
        if not 1 <= self.cold_environments <= MOST_COLD_ENVIRONMENTS:
            raise UsageError(f"--cold-environments is from 1 to {MOST_COLD_ENVIRONMENTS}, not {self.cold_environments}")
        if self.max_loss is not None and not 0 <= self.max_loss < 1:
            raise UsageError(f"--max-loss is a share of the outputs' range from 0 to 1, not {self.max_loss:g}")
        if self.max_loss is not None and self.precision == "fp32":
            raise UsageError("--precision fp32 loses nothing: leave out --max-loss, or allow fp16 by --precision auto")
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
        """Where functions may have their weights, the preferred place first."""
        return places_of(self.weights)

    @property
    def asks_for_columns(self) -> bool:
        """Whether a spread by columns was requested for some stage."""
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

    def most_tiles(self, *, chosen: bool) -> int:
        """Return how many tasks a stage may have at most, of a grid that the planner chooses or the user did."""
        most = self.max_tiles or sys.maxsize
        return min(most, self.account.at_once) if self.account and chosen else most

    @property
    def platform(self) -> Platform:
        return Platform.over(self.facts, self.store, self.cold_share)


def places_of(weights: str) -> tuple[str, ...]:
    """Return where functions may have their weights, the preferred place first; raises UsageError."""
    _check_name("weights", weights, WEIGHT_MODES)
    return (ZIP, FETCHED) if weights == "auto" else (weights,)


def check_gang(gang: str, store: str) -> None:
    """Refuse gangs over a store that cannot carry messages between functions."""
    if gang == "always" and not exchanges(store):
        raise UsageError(f"a gang's functions cannot wait for one another's messages in {store}: use --gang never")


def exchanges(store: str) -> bool:
    """Return whether functions can exchange messages through a kind of store: S3 does not wake who waits."""
    return not store.startswith("s3")


def stage_count(stages: int | str) -> int | None:
    """Read the `stages` argument: a number, or None for "auto"; raises UsageError."""
    if stages == "auto":
        return None
    if isinstance(stages, bool) or not (isinstance(stages, int) or str(stages).isdecimal()):
        raise UsageError(f'stages must be "auto" or a number, not {stages!r}')
    return int(stages)


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


def check_cold_share(share: float) -> float:
    """Return the share of queries that find nothing warm; raises UsageError for what is not one."""
    if not 0 <= share <= 1:
        raise UsageError(f"--cold-share is a share from 0 to 1, not {share:g}")
    return share


def check_gang_width(width: int) -> int:
    """Return the most members of a gang; raises UsageError for fewer than two."""
    if width < MEASURED_MEMBERS:
        raise UsageError(f"--gang-width is {MEASURED_MEMBERS} or more, not {width}: --gang never has no gangs")
    return width


def check_max_tiles(tiles: int | None) -> int | None:
    """Return the most tiles of a stage; raises UsageError for fewer than one."""
    if tiles is not None and tiles < 1:
        raise UsageError(f"a stage has at least 1 tile, not {tiles}")
    return tiles


def _check_name(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} is {', '.join(known)}, not {value!r}")
