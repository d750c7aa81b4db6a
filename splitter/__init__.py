"""Splits a model into a plan: operators, receptive fields, cuts, tiles, and the artefacts that workers run."""
