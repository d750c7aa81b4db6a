"""Costs of a deployment, item by item."""
