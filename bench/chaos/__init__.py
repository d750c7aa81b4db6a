"""Bursts of queries while parts of the system fail."""
