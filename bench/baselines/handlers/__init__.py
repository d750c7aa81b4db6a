"""What runs inside the baselines' functions; beside a worker's own dependencies it needs nothing."""
