"""Keeping a plan's functions warm by learnt windows, one driver's part."""
