"""The commands of `serfer study`, each imported when it runs."""

from serfer.cli.shared.lazy import group

study_app = group(
    "Study loads, policies and this machine.",
    {
        "simulate": (
            "serfer_bench.study.cli.simulate:app",
            "Run a load through routing policies, under a virtual clock.",
        ),
        "replay": (
            "serfer_bench.study.cli.replay:replay",
            "Run a load's busiest minutes on this machine, beside what is simulated for them.",
            "serfer_bench.study.cli.replay:ReplayCommand",
        ),
        "policy": (
            "serfer_bench.study.cli.policy_suite:policy",
            "Hold a policy against the published ones, on fixed loads.",
        ),
        "fetch-traces": (
            "serfer_bench.study.cli.fetch_traces:fetch_traces",
            "Fetch recorded loads that pages of results use.",
        ),
        "tune": ("serfer_bench.study.tune:command", "Measure batch sizes for an instance."),
        "measure-aws": (
            "serfer_bench.study.aws.measure_aws:command",
            "Measure AWS' constants by a stack of the run's own, for SERFER_AWS_FILE.",
        ),
        "profile": ("serfer_bench.study.cli.profile:profile", "Measure operators here, for split --profiles."),
        "cluster-profile": (
            "serfer_bench.study.cli.profile:cluster_profile",
            "Predict what batches of a network take on cores, for a cluster's scenario.",
        ),
        "train-forecaster": (
            "serfer_bench.study.cli.train_forecaster:train_forecaster",
            "Train MArk's forecaster on a load.",
        ),
        "paper": ("serfer_bench.study.cli.papers:paper", "The evaluations of SerFer, MArk, INFaaS and INFless redone."),
        "planner": ("serfer_bench.study.cli.planner:planner", "Plans against others, weights' places, predictions."),
        "networks": (
            "serfer_bench.study.planner.networks:command",
            "Split public architectures on 2x2 tiles; needs timm.",
        ),
        "policies": (
            "serfer_bench.study.cli.planner:policies",
            "Routing policies against the optimum, and against MArk tuned.",
        ),
        "simulator": (
            "serfer_bench.study.policy_experiments.simulator:command",
            "Hold the simulator against local runs, and time it.",
        ),
    },
)
