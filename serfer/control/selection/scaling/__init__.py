"""Case II, the load changes: which variants to replicate, upgrade to or unload, and when to add workers (INFaaS, 4.2).

LoadObservation (a slot) ──► GreedyScaler ──────────────────────────► ScalingPlan
WorkerObservation of each ─► plan_workers ──────────────────────────► workers to add

FleetScaler (fleet.py) applies both to instances that hold variants of several applications, and bounds them by worth.
"""
