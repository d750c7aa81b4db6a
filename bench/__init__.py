"""Measurements, each a comparison on the same work in one run."""
