"""Code of the baselines' functions; it needs only a worker's own dependencies."""
