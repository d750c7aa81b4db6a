"""Gillis re-implemented from its description, to compare with, and the functions of SerFer as published."""
