"""The commands of `serfer bench`, each imported when it runs."""

from __future__ import annotations

from serfer.cli.shared.lazy import group
from serfer_bench.parts import parts

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
    },
)
service = parts(
    "Flood the HTTP service, and count what a query takes in it.",
    {
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
        "page": (
            "serfer_bench.mapping.demonstration:command",
            "A page's text, exact and in SAHI's and MONAI's windows.",
        ),
    },
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
    "service": ("serfer_bench.cli:service", "Flood the HTTP service; what a query takes in it, by part."),
    "instance": ("serfer_bench.cli:instance", "Load instances: batches, several networks, batch sizes."),
    "peers": ("serfer_bench.peers.command:command", "serfer serve beside uvicorn, LitServe, Ray Serve and others."),
    "route": ("serfer_bench.serving.route:command", "Send a sustained burst to a driver with a pool."),
    "maps": ("serfer_bench.cli:maps", "Maps of large images, and a page in exact and fixed windows."),
    "results": ("serfer_bench.records.command:command", "Write pages' tables from records; run these again."),
}
bench_app = group("Measure, on this machine, side by side in one run.", COMMANDS)
