"""What all benchmarks share: plans, rows and their stamp, processes, comparisons."""
