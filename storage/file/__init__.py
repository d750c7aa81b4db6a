"""Stores in a directory."""
