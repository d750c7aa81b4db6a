"""Loads over time, read from access logs and other records."""
