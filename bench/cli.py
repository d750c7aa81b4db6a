"""The commands of `serfer bench`, each imported when it runs."""

from __future__ import annotations

from serfer_bench.parts import commands, parts

overhead = parts(
    "Measure what orchestration costs on this machine.",
    {
        "processor": ("pipeline.overhead:command", "Processor time of the pipeline against the unsplit pass."),
        "elapsed": ("pipeline.orchestration:command", "Elapsed time of a query against threads."),
        "scaling": ("pipeline.orchestration:scaling", "Elapsed time over several workers against one."),
        "driver": ("pipeline.driver_overhead:command", "The driver alone, over functions that do nothing."),
    },
)
service = parts(
    "Flood the HTTP service, and count what a query takes in it.",
    {
        "flood": ("serving.flood:command", "Flood the service with clients that never wait."),
        "profile": ("serving.profile:command", "Count what a query takes in the first process, by part."),
    },
)
instance = parts(
    "Load instances.",
    {
        "batching": ("serving.instance:command", "Load an instance over HTTP, with batching and without."),
        "turns": ("serving.turns:command", "Several networks on one device, in turns or by threads."),
        "nonuniform": ("serving.nonuniform:command", "Two instances: batch sizes of their own, or the same."),
    },
)
maps = parts(
    "Measure maps of images that no function holds.",
    {
        "large": ("mapping.command:command", "serfer map on a large image: time and memory."),
        "page": ("mapping.demonstration:command", "A page's text, exact and in SAHI's and MONAI's windows."),
        "engines": ("mapping.engines:command", "serfer map compared with Dask, Ray and concurrent.futures."),
    },
)
COMMANDS = {
    "burst": ("load.burst:command", "Send queries at once, or at a rate, to each system."),
    "compare": ("load.compare:command", "Report whether two results of burst differ."),
    "overhead": ("cli:overhead", "What orchestration costs: processor and elapsed time."),
    "stores": ("pipeline.stores:command", "Round trips and bandwidth of stores."),
    "engines": ("pipeline.engines:command", "Push, poll and Step Functions; inline, Redis and S3."),
    "cold": ("cold.command:command", "Cold starts part by part, and a cold plan's first answer."),
    "gangs": ("pipeline.gangs:command", "Gangs against one worker, as many threads, other plans."),
    "large-machine": ("pipeline.large_machine:command", "What 16 processors and a GPU show, in ten minutes."),
    "chaos": ("chaos.scenarios:command", "Inject faults while queries run: nothing may be lost."),
    "service": ("cli:service", "Flood the HTTP service; what a query takes in it, by part."),
    "instance": ("cli:instance", "Load instances: batches, several networks, batch sizes."),
    "peers": ("peers.command:command", "serfer serve beside uvicorn, LitServe, Ray Serve and others."),
    "route": ("serving.route:command", "Send a sustained burst to a driver with a pool."),
    "maps": ("cli:maps", "Maps of large images, and a page in exact and fixed windows."),
    "results": ("records.command:command", "Write pages' tables from records; run these again."),
}
bench_app = commands("Measure, on this machine, side by side in one run.", COMMANDS)
