"""The study: what a researcher runs, beside the benchmarks."""
