"""Costs of a query in the pipeline and in its parts."""
