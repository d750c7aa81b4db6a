"""Guesses of when a capacity level should be on, which the default policy follows within its robustness budget."""
