"""The commands of `serfer bench`, each imported when it runs."""

from __future__ import annotations

from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from serfer.cli.shared.lazy import Commands, lazy_group
from serfer.core.errors import UsageError

_PAPERS = "serfer_bench.study.papers"
_PLANNER = "serfer_bench.study.planner"
_POLICIES = "serfer_bench.study.policy_experiments"
_OPTIONS = ("--figure", "--table", "--section")
_HELP = ("--help", "-h")


def parts(summary: str, places: Commands, *, default: bool = True) -> typer.Typer:
    """Return the benchmark with these parts; by `default` one without its part's name runs the first of them."""
    first = next(iter(places)) if default else ""
    listed = {name: (place, f"{what} (default)" if name == first else what) for name, (place, what) in places.items()}
    group = type("PartsGroup", (_Named, lazy_group(listed, {"Parts": [*places]})), {"default": first})
    app = typer.Typer(cls=group, no_args_is_help=not default, add_completion=False, rich_markup_mode=None, help=summary)
    app.callback()(_nothing)
    return app


class _Named(TyperGroup):
    """A group that finds the part's name in its arguments."""

    default: ClassVar[str] = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type is private
        return super().parse_args(ctx, args if ctx.resilient_parsing else self.named(args, self.list_commands(ctx)))

    def named(self, args: list[str], names: list[str]) -> list[str]:
        """Return the arguments with the part's name as one word in front; raises UsageError for an unknown one."""
        first, *rest = args or [""]
        option, equals, number = first.partition("=")
        if option in _OPTIONS:
            if not equals:
                number, *rest = rest or [""]
            if (name := f"{option} {number}") not in names:
                raise UsageError(f"there are {', '.join(names)}, not {name!r:.40}")
            return ["--", name, *rest]  # a name that begins with a dash is not an option
        if self.default and (not first or (first.startswith("-") and first not in _HELP)):
            return ["--", self.default, *args]
        return args


def _nothing() -> None:
    pass


overhead = parts(
    "Measure what orchestration costs on this machine.",
    {
        "processor": (
            "serfer_bench.pipeline.overhead:command",
            "Processor time of the pipeline against the unsplit pass.",
        ),
        "elapsed": ("serfer_bench.pipeline.orchestration:command", "Elapsed time of a query against threads."),
        "scaling": ("serfer_bench.pipeline.orchestration:scaling", "Elapsed time over several workers against one."),
        "driver": (
            "serfer_bench.pipeline.driver_overhead:command",
            "The driver alone, over functions that do nothing.",
        ),
        "micro": ("serfer_bench.pipeline.micro:command", "Processor time and memory of the hot path's parts."),
    },
)
service = parts(
    "Price the HTTP service, and load it beyond what it can do.",
    {
        "overload": ("serfer_bench.serving.service:command", "Price HTTP and the balancer, and overload the service."),
        "flood": ("serfer_bench.serving.flood:command", "Flood the service with clients that never wait."),
        "profile": ("serfer_bench.serving.profile:command", "Count what a query takes in the first process, by part."),
    },
)
instance = parts(
    "Load instances.",
    {
        "batching": ("serfer_bench.serving.instance:command", "Load an instance over HTTP, with batching and without."),
        "turns": ("serfer_bench.serving.turns:command", "Several networks on one device, in turns or by threads."),
        "nonuniform": (
            "serfer_bench.serving.nonuniform:command",
            "Two instances: batch sizes of their own, or the same.",
        ),
    },
)
maps = parts(
    "Measure maps of images that no function holds.",
    {
        "large": (
            "serfer_bench.mapping.command:command",
            "serfer map on a large image: exactness, time, memory, kills.",
        ),
        "peers": ("serfer_bench.mapping.peers:command", "serfer map beside MONAI's sliding windows."),
        "page": (
            "serfer_bench.mapping.demonstration:command",
            "A page's text, exact and in SAHI's and MONAI's windows.",
        ),
    },
)
planner = parts(
    "Hold the planner against another one, against one function, and against measurements.",
    {
        "gillis": (
            f"{_PLANNER}.planner:command",
            "Our plans against Gillis's planner and one function.",
        ),
        "peers": (
            f"{_PLANNER}.peers.command:command",
            "Plans of Gillis's own planner and of MPHB's against ours.",
        ),
        "breakeven": (
            f"{_PLANNER}.breakeven:command",
            "From where on splitting beats one large function.",
        ),
        "places": (
            f"{_PLANNER}.weight_places:command",
            "Price the places of weights: warm and cold, fp32 and fp16.",
        ),
        "defaults": (
            f"{_PLANNER}.defaults:command",
            "What cold queries and the width of gangs change for the zoo.",
        ),
        "surface": (
            f"{_PLANNER}.surface:command",
            "The cheapest way for a network, an image, a burst and an objective.",
        ),
        "prediction": (f"{_PLANNER}.prediction:command", "Predicted against measured stage latencies."),
        "constants": (
            "serfer_bench.study.aws.constants:command",
            "Put constants into the local Lambda service, and find them.",
        ),
        "tails": (
            "serfer_bench.study.aws.tails_accuracy:command",
            "How exact tails of starts are fitted, by the number of samples.",
        ),
    },
)
policies = parts(
    "Simulate policies.",
    {
        "optimum": (
            f"{_POLICIES}.policies:command",
            "Run routing policies on all loads, against the optimum.",
        ),
        "halves": (
            f"{_POLICIES}.halves:command",
            "Policies against MArk tuned on the first half of loads.",
        ),
        "sharing": (
            f"{_POLICIES}.sharing:command",
            "Shared invocations: at once, or in windows.",
        ),
    },
)
serfer = parts(
    "Redo SerFer's evaluation; its driver, as published, is a system of bench burst.",
    {
        "--section 4.1.1": (
            f"{_PAPERS}.serfer.gap:command",
            "What a pooled head loses, on real digits.",
        ),
        "--table 1": (
            f"{_PAPERS}.serfer.evaluation:table_1",
            "Bursts, uniform traffic and Step Functions: figures 5 to 8, 10 and 12 to 14 in one run.",
        ),
        **{
            f"--figure {number}": (f"{_PAPERS}.serfer.evaluation:parts", f"{what} in a burst of 100.")
            for number, what in {
                5: "Reads and writes of the store",
                6: "Lambda layers",
                7: "Polling",
                8: "Merge and split",
            }.items()
        },
        "--figure 9": ("serfer_bench.serving.instance:command", "Throughput of an instance by burst size."),
        "--figure 10": (f"{_PAPERS}.serfer.evaluation:bursts", "Throughput by burst size."),
        "--figure 11": ("serfer_bench.serving.instance:command", "Latency of an instance by burst size."),
        "--figure 12": (f"{_PAPERS}.serfer.evaluation:bursts", "Latency by burst size."),
        "--figure 13": (f"{_PAPERS}.serfer.evaluation:uniform", "Latencies of uniform traffic."),
        "--figure 14": (f"{_PAPERS}.serfer.evaluation:step_functions", "Latencies of Step Functions."),
        "emulated": (
            f"{_PAPERS}.serfer.emulated:command",
            "Figures 10 and 12 to 1,000 at once, over functions that wait as long as measured, and as Table 2 has it.",
        ),
        "--table 2": (f"{_PAPERS}.serfer.costs:command", "Dollars of a query (equation 2)."),
        "--table 3": (f"{_PAPERS}.serfer.costs:command", "Dollars of a query and an hour."),
        "--section 6.4": (f"{_PAPERS}.serfer.costs:command", "When to move from a GPU to functions."),
    },
)
infaas = parts(
    "Redo INFaaS' evaluation, beside its published factors.",
    {
        "--figure 5": (
            f"{_PAPERS}.infaas.figure5:command",
            "22 networks under a day of a trace, simulated.",
        ),
        "--figure 6": (f"{_PAPERS}.infaas.figure6:command", "One network on one worker, simulated."),
        "--figure 7": (f"{_PAPERS}.infaas.figure7:command", "Networks that share GPUs, simulated."),
        "--figure 8": (
            f"{_PAPERS}.infaas.figure8:command",
            "Online queries beside a map that yields, or does not.",
        ),
        "--table 7": (f"{_PAPERS}.infaas.table7:command", "Time the selection of a variant among 200."),
        "--section 4.2": (
            f"{_PAPERS}.infaas.scaling:command",
            "Greedy scaling against the integer programme.",
        ),
    },
    default=False,
)
infless = parts(
    "Redo INFless' evaluation, beside its published figures.",
    {
        "all": (
            f"{_PAPERS}.infless.command:command",
            "Figures 11 to 15, 17 and 18 and Table 4, simulated.",
        ),
        "--figure 8": (
            f"{_PAPERS}.infless.figure8:command",
            "Whole networks, predicted and measured here.",
        ),
        "--figure 11": (
            f"{_PAPERS}.infless.command:figure_11",
            "The highest constant load on 8 servers.",
        ),
        "--figure 12": (
            f"{_PAPERS}.infless.command:figure_12",
            "Throughput per resource, under loads as well.",
        ),
        "--figure 12b": (
            f"{_PAPERS}.infless.command:figure_12b",
            "Throughput per resource by SLO alone.",
        ),
        "--figure 13": (
            f"{_PAPERS}.infless.command:figure_13",
            "Batches, what is occupied, latency in parts: 13, 14, 15b, 15c.",
        ),
        "--figure 14": (f"{_PAPERS}.infless.command:figure_13", "The same as --figure 13."),
        "--figure 15": (f"{_PAPERS}.infless.command:loads", "SLOs missed under loads."),
        "--figure 16": (
            f"{_PAPERS}.infless.figure16:command",
            "LSTH, hybrid histograms and fixed windows.",
        ),
        "--figure 17": (f"{_PAPERS}.infless.command:figure_17", "Decisions and fragments at scale."),
        "--figure 18": (f"{_PAPERS}.infless.command:figure_18", "Throughput by SLO."),
        "--table 4": (f"{_PAPERS}.infless.command:loads", "Dollars under loads."),
    },
)
paper = typer.Typer(
    cls=lazy_group(
        {
            "serfer": ("serfer_bench.cli:serfer", "Tables 1 to 3, figures 5 to 14, sections 4.1.1 and 6.4."),
            "mark": (
                f"{_PAPERS}.mark.evaluation:command",
                "The evaluation redone, beside its published factors.",
            ),
            "infaas": ("serfer_bench.cli:infaas", "Figures 5 to 8, Table 7, and section 4.2's scaling."),
            "infless": ("serfer_bench.cli:infless", "Figures 8 and 11 to 18, and Table 4."),
        }
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Redo a paper's evaluation, beside what it published: NAME [--figure N | --table N | --section N].",
)
COMMANDS = {
    "burst": ("serfer_bench.load.burst:command", "Send queries at once, or at a rate, to each system."),
    "compare": ("serfer_bench.load.compare:command", "Report whether two results of burst differ."),
    "overhead": ("serfer_bench.cli:overhead", "What orchestration costs: processor and elapsed time."),
    "stores": ("serfer_bench.pipeline.stores:command", "Round trips and bandwidth of stores."),
    "engines": ("serfer_bench.pipeline.engines:command", "Push, poll and Step Functions; inline, Redis and S3."),
    "cold": ("serfer_bench.cold.command:command", "Cold starts part by part, and a cold plan's first answer."),
    "gangs": ("serfer_bench.pipeline.gangs:command", "Gangs against one worker, as many threads, other plans."),
    "large-machine": (
        "serfer_bench.pipeline.large_machine:command",
        "What 16 processors and a GPU show, in ten minutes.",
    ),
    "chaos": ("serfer_bench.chaos.scenarios:command", "Inject faults while queries run: nothing may be lost."),
    "service": ("serfer_bench.cli:service", "Price HTTP and the balancer; overload and flood the service."),
    "instance": ("serfer_bench.cli:instance", "Load instances: batches, several networks, batch sizes."),
    "peers": ("serfer_bench.peers.command:command", "serfer serve beside uvicorn, LitServe, Ray Serve and others."),
    "route": ("serfer_bench.serving.route:command", "Send a sustained burst to a driver with a pool."),
    "maps": ("serfer_bench.cli:maps", "Maps of large images, and a page in exact and fixed windows."),
    "planner": ("serfer_bench.cli:planner", "Plans against others, weights' places, predictions."),
    "networks": (f"{_PLANNER}.networks:command", "Split public architectures on 2x2 tiles; needs timm."),
    "policies": ("serfer_bench.cli:policies", "Routing policies against the optimum, and against MArk tuned."),
    "simulator": (
        f"{_POLICIES}.simulator:command",
        "Hold the simulator against local runs, and time it.",
    ),
    "results": ("serfer_bench.records.command:command", "Write pages' tables from records; run these again."),
    "paper": ("serfer_bench.cli:paper", "The evaluations of SerFer, MArk, INFaaS and INFless redone."),
}

bench_app = typer.Typer(
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Measure, on this machine, side by side in one run.",
)


@bench_app.callback()
@paper.callback()
def _groups() -> None:
    pass
