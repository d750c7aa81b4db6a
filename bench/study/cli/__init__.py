"""The commands of `serfer study`, each imported when it runs."""

from serfer_bench.parts import commands

study_app = commands(
    "Study loads, policies and this machine.",
    {
        "simulate": ("study.cli.simulate:app", "Run a load through routing policies, under a virtual clock."),
        "replay": (
            "study.cli.replay:replay",
            "Run a load's busiest minutes on this machine, beside what is simulated for them.",
            "serfer_bench.study.cli.replay:ReplayCommand",
        ),
        "policy": ("study.cli.policy_suite:policy", "Hold a policy against the published ones, on fixed loads."),
        "fetch-traces": ("study.cli.fetch_traces:fetch_traces", "Fetch recorded loads that pages of results use."),
        "tune": ("study.tune:command", "Measure batch sizes for an instance."),
        "measure-aws": (
            "study.aws.measure_aws:command",
            "Measure AWS' constants by a stack of the run's own, for SERFER_AWS_FILE.",
        ),
        "profile": ("study.cli.profile:profile", "Measure operators here, for split --profiles."),
        "cluster-profile": (
            "study.cli.profile:cluster_profile",
            "Predict what batches of a network take on cores, for a cluster's scenario.",
        ),
        "train-forecaster": ("study.cli.train_forecaster:train_forecaster", "Train MArk's forecaster on a load."),
        "paper": ("study.cli.papers:paper", "The evaluations of SerFer, MArk, INFaaS and INFless redone."),
        "planner": ("study.cli.planner:planner", "Plans against others, weights' places, predictions."),
        "networks": ("study.planner.networks:command", "Split public architectures on 2x2 tiles; needs timm."),
        "policies": ("study.cli.planner:policies", "Routing policies against the optimum, and against MArk tuned."),
        "simulator": (
            "study.policy_experiments.simulator:command",
            "Hold the simulator against local runs, and time it.",
        ),
    },
)
