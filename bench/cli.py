"""The commands of `serfer bench`, each imported when it runs."""

from __future__ import annotations

import typer

from serfer.cli.shared.lazy import lazy_group

COMMANDS = {
    "instance": ("bench.serving.instance:command", "Load an instance over HTTP, with batching and without."),
    "turns": ("bench.serving.turns:command", "Several networks on one device, in turns or by threads."),
    "policies": ("bench.policies.policies:command", "Run routing policies on all loads, against the optimum."),
    "halves": ("bench.policies.halves:command", "Policies against MArk tuned on the first half of loads."),
    "mark": ("bench.policies.mark_evaluation:command", "MArk's evaluation redone, beside its published factors."),
    "windows": ("bench.windows.command:command", "LSTH, hybrid histograms and fixed keep-alive windows."),
    "select": ("bench.selection.select:command", "Time the selection of a variant among 200."),
    "infaas": ("bench.selection.figure6:command", "INFaaS' figure 6 redone, beside its published factors."),
    "infaas-day": ("bench.selection.figure5:command", "INFaaS' figure 5 redone under a day of a trace."),
    "infaas-gpus": ("bench.selection.figure7:command", "INFaaS' figure 7 redone: networks that share GPUs."),
    "autoscaling": ("bench.selection.scaling:command", "INFaaS' greedy scaling against its integer programme."),
    "infless": ("bench.infless.command:command", "INFless' evaluation redone, beside its published figures."),
    "route": ("bench.serving.route:command", "Send a sustained burst to a driver with a pool."),
    "nonuniform": ("bench.serving.nonuniform:command", "Two instances: batch sizes of their own, or the same."),
    "sharing": ("bench.policies.sharing:command", "Shared invocations: at once, or in windows; simulated."),
    "simulator": ("bench.policies.simulator:command", "Hold the simulator against local runs, and time it."),
    "offline": ("bench.serving.offline:command", "Online queries beside a map that yields, or does not."),
    "overhead": ("bench.pipeline.overhead:command", "Processor time of the pipeline against the unsplit pass."),
    "service": ("bench.serving.service:command", "Price HTTP and the balancer, and overload the service."),
    "flood": ("bench.serving.flood:command", "Flood the service with clients that never wait."),
    "orchestration": ("bench.pipeline.orchestration:command", "Elapsed time of a query against threads."),
    "scaling": ("bench.pipeline.orchestration:scaling", "Elapsed time over several workers against one."),
    "driver": ("bench.pipeline.driver_overhead:command", "The driver alone, over functions that do nothing."),
    "inflation": ("bench.planner.inflation:command", "Count what halos cost."),
    "networks": ("bench.planner.networks:command", "Split public architectures on 2x2 tiles; needs timm."),
    "gap": ("bench.planner.gap:command", "Accuracy that global average pooling costs, on real digits."),
    "planner": ("bench.planner.planner:command", "Our plans against Gillis's planner and one function."),
    "places": ("bench.planner.weight_places:command", "Price the places of weights: warm and cold, fp32 and fp16."),
    "breakeven": ("bench.planner.breakeven:command", "From where on splitting beats one large function."),
    "prediction": ("bench.planner.prediction:command", "Predicted against measured stage latencies."),
    "burst": ("bench.load.burst:command", "Send all queries at once to each system."),
    "uniform": ("bench.load.uniform:command", "Send queries at a rate to each system."),
    "compare": ("bench.load.compare:command", "Report whether two results of burst or uniform differ."),
    "stores": ("bench.pipeline.stores:command", "Round trips and bandwidth of stores."),
    "engines": ("bench.pipeline.engines:command", "Push, poll and Step Functions; inline, Redis and S3."),
    "cold": ("bench.cold.command:command", "Cold starts part by part, and a cold plan's first answer."),
    "gangs": ("bench.pipeline.gangs:command", "Gangs against one worker, and against plans without them."),
    "maps": ("bench.pipeline.maps:command", "Exact windows of an image against fixed overlaps."),
    "mapping": ("bench.mapping.command:command", "serfer map on a large image: exactness, time, memory, kills."),
    "micro": ("bench.pipeline.micro:command", "Processor time and memory of the hot path's parts."),
    "chaos": ("bench.chaos.scenarios:command", "Inject faults while queries run: nothing may be lost."),
}

bench_app = typer.Typer(
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Measure, on this machine, side by side in one run.",
)


@bench_app.callback()
def _bench() -> None:
    pass
