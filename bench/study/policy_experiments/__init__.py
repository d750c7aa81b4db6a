"""Routing policies against the optimum, and the simulator against the real thing."""
