"""Take queries through a plan: the drivers, and the invokers that start their tasks."""
