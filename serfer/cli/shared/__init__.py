"""Shared by the commands: options, the plan they mean, how they print, and how the program ends."""
