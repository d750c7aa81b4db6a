"""Benchmarks of windows in which functions are warm."""
