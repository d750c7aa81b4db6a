"""The options of commands about a plan: `serfer split`, `explain`, `verify`, `cost`, `deploy package` and `warm`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from serfer.cli.shared.option_groups import JsonOptions, NetworkFileOptions, ProfilesOptions, RegistryOptions
from serfer.core.errors import UsageError
from serfer.core.options import REQUIRED, Options, argument, option
from serfer.splitter.network.zoo import ZOO
from serfer.splitter.planning.split_options import SplitOptions
from serfer.wiring.pipeline_options import PipelineOptions

_MOST_QUERIES = 10**12
_ZOO = ", ".join(ZOO)
_PLAN = "A plan directory, from serfer split."


@dataclass(frozen=True, kw_only=True)
class MonthOptions(JsonOptions):
    """How a plan's price is shown."""

    per_month: tuple[int, ...] = option(
        (), "Dollars of a month of so many queries; may be repeated.", metavar="QUERIES", least=1, most=_MOST_QUERIES
    )


@dataclass(frozen=True, kw_only=True)
class AccountOptions(Options):
    """The account that is planned for, or priced."""

    account: str | None = option(
        None,
        "The AWS account: new (3,008 MB a function, 10 environments at once), default (all that AWS "
        "documents), or MB,ENVIRONMENTS.",
        setting="account",
        own_default=True,
        shown="what serfer doctor --aws found, or new",
    )


@dataclass(frozen=True, kw_only=True)
class SplitCommand(SplitOptions, NetworkFileOptions, AccountOptions, ProfilesOptions, MonthOptions):
    """Split a model into stages and tiles, prove the parts equal to the whole, and write a plan directory."""

    command: ClassVar[str] = "split"
    line: ClassVar[str] = (
        "out whole grids stages objective slo_ms precision memory_mb store size preprocess labels output random name "
        "per_month as_json"
    )

    model: str = argument(
        REQUIRED,
        "An .onnx file; module.py:factory, a function without arguments that returns the nn.Module (the file is "
        "imported and run, so it must be one that you trust); timm:NAME or torchvision:NAME, with the preprocessing "
        f"and labels of its weights; or a model of the zoo: {_ZOO}.",
        metavar="MODEL",
    )
    out: Path = option(REQUIRED, "The plan directory to write; a plan there is replaced.", metavar="DIR")
    whole: bool = option(
        False, "Split nothing: one function runs the network as it is, any that ONNX Runtime runs; nothing is searched."
    )
    calibration: Path | None = option(None, "A folder with a folder of images for each class.")
    safety: float = option(0.0, "A share to add to every predicted compute time (INFless: 0.1).", least=0, most=1000)


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(MonthOptions):
    """Show a plan: its stages, grids, halos, package sizes, what it lost, what it costs, and what it beat."""

    command: ClassVar[str] = "explain"
    line: ClassVar[str] = "operators pareto picture image burst per_month as_json"

    directory: Path = argument(REQUIRED, _PLAN, metavar="DIR")
    operators: bool = option(False, "List every operator, by stage.")
    pareto: bool = option(False, "Show latency against dollars: this plan, and what it competed with.")
    picture: Path | None = option(None, "Draw the network with its cuts, and tiles with their halos, to this file.")
    image: Path | None = option(None, "The image that tiles are drawn over, with --picture.")
    burst: int = option(1, "Queries at once that find nothing warm, with a cold plan.", least=1, most=_MOST_QUERIES)


@dataclass(frozen=True, kw_only=True)
class VerifyCommand(PipelineOptions, JsonOptions):
    """Compare a plan with its unsplit model; exit code 1 if an answer differs.

    A plan that stores weights in fp16, or has another head, is compared with the network that it computes, and what it
    lost against the model as it was given is reported as well. On labelled images, so are the shares of right answers
    of the plan and of the model as it was given, with their 95% intervals (Wilson's).
    """

    command: ClassVar[str] = "verify"
    line: ClassVar[str] = "images random validation workers stack store as_json"

    directory: Path = argument(REQUIRED, _PLAN, metavar="DIR")
    workers: str | None = option(
        None,
        "inprocess: threads here; local: the local Lambda service, a process for each environment; aws: the plan's "
        "functions as deployed.",
        setting="workers",
        shown="inprocess, or aws with --stack",
    )
    more: tuple[str, ...] = argument((), "Images, or folders of them.", metavar="[IMAGE]...")
    images: tuple[str, ...] = option((), "The same: one or several images or folders.")
    random: int | None = option(None, "How many random inputs to compare on: 2, unless there are images.", least=0)
    validation: Path | None = option(
        None, "Labelled images, to report accuracy: a folder for each class, or a labels.csv (file,label) beside them."
    )


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Options):
    """A load, and the instance that is compared with functions."""

    log: Path | None = option(
        None, "Price a month of an access log's load, each way to serve it; plain or .gz (docs/how-to/bill.md)."
    )
    qps: float | None = option(None, "Without a log: so many queries a second, at random.", least=1e-6, most=1e4)
    path: str | None = option(None, "With --log: count requests whose URL's path begins with this.", metavar="PREFIX")
    instance: str | None = option(None, "The instance that a load is compared with.", metavar="TYPE", shown="c7i.large")
    slo_ms: float | None = option(None, "In how many ms an instance has to answer.", least=1, shown="1000, or more")
    scenario: Path | None = option(None, "An instance as measured (serfer study tune), and slo_ms.", metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log is not None and self.qps is not None:
            raise UsageError("--log and --qps both say what the load is: give one of them")
        if self.has_load and self.path is not None and (self.log is None or not self.path.startswith("/")):
            raise UsageError("--path is the beginning of URLs of a --log, such as /v1/classify")
        if self.has_load and self.scenario is not None and (self.instance is not None or self.slo_ms is not None):
            raise UsageError("--scenario has an instance and slo_ms of its own: leave out --instance and --slo-ms")

    @property
    def has_load(self) -> bool:
        return self.log is not None or self.qps is not None


@dataclass(frozen=True, kw_only=True)
class PriceOptions(Options):
    """What is priced where there is no load."""

    burst: int = option(1000, "How many queries come at once.", least=1, most=_MOST_QUERIES)
    cold_share: float | None = option(
        None,
        "The share of queries that find nothing warm, 0 to 1; by default what the plan was chosen for (0.02 is "
        "assumed), with BUILD the share of queries that come at random.",
        least=0,
        most=1,
    )
    memory: int | None = option(None, "MB of every function; by default each stage's own.")
    parameter: tuple[str, ...] = option((), "A parameter of BUILD, such as AlarmEmail=x.", metavar="NAME=VALUE")


@dataclass(frozen=True, kw_only=True)
class CostCommand(LoadOptions, PriceOptions, AccountOptions, MonthOptions):
    """Price a network, a plan or a deployment on AWS, as predicted: queries, a burst, months, the load of a log."""

    command: ClassVar[str] = "cost"
    line: ClassVar[str] = (
        "log qps path instance slo_ms scenario size burst store cold_share memory per_month parameter as_json"
    )

    directory: Path = argument(
        REQUIRED,
        "A plan directory, a BUILD directory of serfer deploy package; or an .onnx file, timm:NAME or "
        "torchvision:NAME, priced as one function.",
        metavar="NETWORK_OR_DIR",
    )
    store: str | None = option(None, "redis, s3, valkey, redis+s3 or valkey+s3; by default the plan's own.")
    size: str | None = option(None, "Of an .onnx file that does not fix it: the input's HEIGHTxWIDTH, or a range.")
    channels: int | None = option(None, "The input's channels, with size.", least=1, most=4096)


@dataclass(frozen=True, kw_only=True)
class PackageCommand(AccountOptions, RegistryOptions, JsonOptions):
    """Write what SAM deploys: template, functions, layers, state machine, bill of materials (docs/how-to/deploy.md)."""

    command: ClassVar[str] = "deploy package"
    line: ClassVar[str] = (
        "out name region drivers store engine runtime architecture snapstart registry app gpu_instance_type "
        "previous_of previous as_json"
    )

    directory: Path = argument(REQUIRED, _PLAN, metavar="DIR")
    out: Path = option(REQUIRED, "The directory to write; an earlier deployment there is updated.", metavar="BUILD")
    name: str | None = option(None, "What the stacks are called, NAME-dev and NAME-prod; by default serfer-MODEL.")
    region: str | None = option(None, "By default boto3's, or else us-east-1.")
    drivers: str = option("function", "function: behind a REST API; fleet: behind a load balancer.")
    store: str | None = option(
        None,
        "s3, s3express, valkey or redis (ElastiCache Serverless, in a VPC), valkey-public (on the internet).",
        shown="what --out has, or the plan's own; s3 where no stage hands anything on through a store",
    )
    engine: str = option("push", "push, poll, stepfunctions or stepfunctions-express (docs/reference/engines.md).")
    runtime: str = option("python3.13", "python3.13, python3.12 or python3.14.")
    architecture: str = option("x86_64", "x86_64 or arm64.")
    snapstart: bool = option(False, "Start functions from snapshots, which cost something all the time.")
    reserved_concurrency: int | None = option(None, "Environments reserved for each stage's function, and its most.")
    driver_runs: Literal["auto", "always", "never"] = option(
        "auto", "Whether the driver function itself runs a plan of one function: auto, always or never."
    )
    provisioned_concurrency: int | None = option(None, "Queries at once that Lambda keeps ready for, at a price.")
    ping_every: int | None = option(None, "Minutes between the pings of a schedule that keeps environments warm.")
    ping_queries: int | None = option(None, "For how many queries at once pings do so; by default 1.")
    results_days: int = option(0, "Keep results that are too large for an answer for so long, in a bucket; 0: none.")
    app: tuple[str, ...] = option(
        (), "With --registry in S3: an application that drivers answer for, too; may be repeated.", metavar="NAME"
    )
    beside: tuple[Path, ...] = option(
        (), "With --app: plan directories of other variants to deploy, too, with commas between them."
    )
    zone: str | None = option(None, "With --store s3express: its availability zone's id, such as use1-az4.")
    gpu_instance_type: str | None = option(None, "A pool of GPU instances for load that lasts, with --drivers fleet.")
    gpu_max: int | None = option(None, "Instances that the pool may have at most; by default 4.")
    gpu_warm_pool: int | None = option(None, "Instances of it that are kept prepared and stopped; by default none.")
    gpu_spot: bool = option(False, "Add a group of spot instances for the policy mark-spot, at the profile's price.")
    gpu_profile: Path | None = option(None, "How fast an instance is: what serfer study tune --out wrote on one.")
    gpu_slo_ms: float | None = option(None, "The objective that the profile was made for (serfer study tune).")
    base_image: str | None = option(None, "Build container images on this one; by default on AWS's of the runtime.")
    previous: bool = option(True, "Keep the plan that --out has now, while drivers change over and to go back to.")
    previous_of: str | None = option(None, "For a new --out: keep the plan that a stack serves.", metavar="STACK")


@dataclass(frozen=True, kw_only=True)
class WarmCommand(JsonOptions):
    """Warm a plan's deployed functions up: start environments for so many queries at once, and build their sessions."""

    command: ClassVar[str] = "deploy warm"
    line: ClassVar[str] = "plan model stack store queries hold_s every_s as_json"

    plan: Path | None = option(None, _PLAN, metavar="DIR")
    model: str | None = option(None, f"A model of the zoo: {_ZOO}.", metavar="NAME")
    stack: str | None = option(None, "The stack of the deployment.", metavar="NAME", setting="stack")
    store: str | None = option(None, "The deployment's store; by default the stack's.", metavar="URL", setting="store")
    queries: int = option(1, "For how many queries at once.", least=1, most=1000)
    hold_s: float = option(0.5, "Seconds that a request keeps its environment, so that others start.", least=0, most=60)
    every_s: float | None = option(None, "Do it again so many seconds apart, until interrupted.", least=1, most=86_400)
