"""Where queries run, and how many instances there should be: pure decisions, from numbers to data."""
