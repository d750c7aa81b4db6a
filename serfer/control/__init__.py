"""Routing of queries and scaling of instances: pure decisions, from numbers to data."""
