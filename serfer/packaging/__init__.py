"""Directories of functions: the handler, its dependencies and a plan's files, pruned and compiled."""
