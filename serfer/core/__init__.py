"""The pure core: no clock, no environment, no network, no torch."""
