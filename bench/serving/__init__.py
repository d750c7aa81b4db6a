"""The HTTP service, instances and routing under load."""
