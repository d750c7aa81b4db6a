"""Operator profiles: what operators take on a machine, measured and fitted."""
