"""Measure the constants of AWS on a deployed function, and what the measurement finds of constants that are known."""
