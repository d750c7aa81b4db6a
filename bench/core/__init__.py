"""Shared by all benchmarks: plans, rows and their stamp, processes, comparisons."""
