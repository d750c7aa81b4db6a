"""`serfer study paper`: the evaluation of each paper, by figure, table or section."""

from __future__ import annotations

from serfer_bench.parts import commands, parts

_PAPERS = "study.papers"

serfer = parts(
    "Redo SerFer's evaluation; its driver, as published, is a system of bench burst.",
    {
        "--section 4.1.1": (f"{_PAPERS}.serfer.gap:command", "What a pooled head loses, on real digits."),
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
        "--figure 9": ("serving.instance:command", "Throughput of an instance by burst size."),
        "--figure 10": (f"{_PAPERS}.serfer.evaluation:bursts", "Throughput by burst size."),
        "--figure 11": ("serving.instance:command", "Latency of an instance by burst size."),
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
        "--figure 5": (f"{_PAPERS}.infaas.figure5:command", "22 networks under a day of a trace, simulated."),
        "--figure 6": (f"{_PAPERS}.infaas.figure6:command", "One network on one worker, simulated."),
        "--figure 7": (f"{_PAPERS}.infaas.figure7:command", "Networks that share GPUs, simulated."),
        "--figure 8": (f"{_PAPERS}.infaas.figure8:command", "Online queries beside a map that yields, or does not."),
        "--table 7": (f"{_PAPERS}.infaas.table7:command", "Time the selection of a variant among 200."),
        "--section 4.2": (f"{_PAPERS}.infaas.scaling:command", "Greedy scaling against the integer programme."),
    },
    default=False,
)
infless = parts(
    "Redo INFless' evaluation, beside its published figures.",
    {
        "all": (f"{_PAPERS}.infless.command:command", "Figures 11 to 15, 17 and 18 and Table 4, simulated."),
        "--figure 8": (f"{_PAPERS}.infless.figure8:command", "Whole networks, predicted and measured here."),
        "--figure 11": (f"{_PAPERS}.infless.command:figure_11", "The highest constant load on 8 servers."),
        "--figure 12": (f"{_PAPERS}.infless.command:figure_12", "Throughput per resource, under loads as well."),
        "--figure 12b": (f"{_PAPERS}.infless.command:figure_12b", "Throughput per resource by SLO alone."),
        "--figure 13": (
            f"{_PAPERS}.infless.command:figure_13",
            "Batches, what is occupied, latency in parts: 13, 14, 15b, 15c.",
        ),
        "--figure 14": (f"{_PAPERS}.infless.command:figure_13", "The same as --figure 13."),
        "--figure 15": (f"{_PAPERS}.infless.command:loads", "SLOs missed under loads."),
        "--figure 16": (f"{_PAPERS}.infless.figure16:command", "LSTH, hybrid histograms and fixed windows."),
        "--figure 17": (f"{_PAPERS}.infless.command:figure_17", "Decisions and fragments at scale."),
        "--figure 18": (f"{_PAPERS}.infless.command:figure_18", "Throughput by SLO."),
        "--table 4": (f"{_PAPERS}.infless.command:loads", "Dollars under loads."),
    },
)
paper = commands(
    "Redo a paper's evaluation, beside what it published: NAME [--figure N | --table N | --section N].",
    {
        "serfer": ("study.cli.papers:serfer", "Tables 1 to 3, figures 5 to 14, sections 4.1.1 and 6.4."),
        "mark": (f"{_PAPERS}.mark.evaluation:command", "The evaluation redone, beside its published factors."),
        "infaas": ("study.cli.papers:infaas", "Figures 5 to 8, Table 7, and section 4.2's scaling."),
        "infless": ("study.cli.papers:infless", "Figures 8 and 11 to 18, and Table 4."),
    },
)
