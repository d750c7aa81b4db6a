"""Simulators of loads, policies, functions and instances."""
