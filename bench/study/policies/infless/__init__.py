"""INFless' autoscaling of functions on a cluster of CPU cores and GPU shares, and two baselines, for the simulator.

    operators ──Chain, Branches──► f(b, c, g) ──rates──► Function.options ──┐
    Servers: what is free ──────────────────────────────────────────────────┼─► ClusterPolicy.step ──► Step
    requests a second of each function, once a period ──────────────────────┘   launched, stopped

Pure: no clock, no I/O (docs/explanation/infless.md).
"""
