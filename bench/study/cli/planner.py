"""`serfer study planner` and `serfer study policies`: studies of several parts."""

from __future__ import annotations

from serfer_bench.parts import parts

_PLANNER = "study.planner"
_POLICIES = "study.policy_experiments"

planner = parts(
    "Hold the planner against another one, against one function, and against measurements.",
    {
        "gillis": (f"{_PLANNER}.planner:command", "Our plans against Gillis's planner and one function."),
        "peers": (f"{_PLANNER}.peers.command:command", "Plans of Gillis's own planner and of MPHB's against ours."),
        "breakeven": (f"{_PLANNER}.breakeven:command", "From where on splitting beats one large function."),
        "places": (f"{_PLANNER}.weight_places:command", "Price the places of weights: warm and cold, fp32 and fp16."),
        "defaults": (f"{_PLANNER}.defaults:command", "What cold queries and the width of gangs change for the zoo."),
        "surface": (
            f"{_PLANNER}.surface:command",
            "The cheapest way for a network, an image, a burst and an objective.",
        ),
        "prediction": (f"{_PLANNER}.prediction:command", "Predicted against measured stage latencies."),
        "constants": ("study.aws.constants:command", "Put constants into the local Lambda service, and find them."),
        "tails": (
            "study.aws.tails_accuracy:command",
            "How exact tails of starts are fitted, by the number of samples.",
        ),
    },
)
policies = parts(
    "Simulate policies.",
    {
        "optimum": (f"{_POLICIES}.policies:command", "Run routing policies on all loads, against the optimum."),
        "halves": (f"{_POLICIES}.halves:command", "Policies against MArk tuned on the first half of loads."),
        "sharing": (f"{_POLICIES}.sharing:command", "Shared invocations: at once, or in windows."),
    },
)
